//! Where an import writes: the store, with what it remembers of sources.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use content::{Descriptor, Digest, Expected, IngestId, MediaType};
use import::{Event, Fill, Target};
use manifests::media_types;
use store::Store;

use super::super::Library;
use super::{INGEST_PREFIX, Observer};

/// The store as an importer's target.
pub(in crate::ops) struct StoreTarget<'a> {
    store: &'a Store,
    /// Names and sizes of all layers of all models: what an import may find again.
    known: HashSet<(String, u64)>,
    /// The kind of the notes that say what became of a source.
    note: &'static str,
    /// Sources that were met and what they became; those from before and those from now.
    made: Mutex<Vec<(Digest, Digest)>>,
}

/// The kind of note that says which blob was made from a source. It is a shortcut: losing it costs reading the source
/// again.
const SOURCE_NOTE: &str = "source-blob";
/// The kind of note that says which blob was derived; it is about the key of the derivation, which is no blob. Losing it
/// costs computing again.
const DERIVED_NOTE: &str = "derived";

impl<'a> StoreTarget<'a> {
    /// For sources that are read as fast as the store.
    pub(in crate::ops) fn new(library: &'a Library) -> Result<Self> {
        let mut known = HashSet::new();
        for tag in library.store.tags()? {
            // A model that cannot be read only costs a comparison.
            let Ok(manifest) = library.manifest(&tag.digest) else { continue };
            known.extend(
                manifest
                    .layers_of(media_types::TENSOR)
                    .filter_map(|layer| Some((layer.name()?.to_owned(), layer.size()))),
            );
        }
        Ok(Self { known, ..Self::streaming(library) })
    }

    /// For sources that are far away: nothing is read twice in the hope of not having to write it.
    pub(in crate::ops) fn streaming(library: &'a Library) -> Self {
        Self { store: &library.store, known: HashSet::new(), note: SOURCE_NOTE, made: Mutex::default() }
    }

    /// For blobs that are derived from others.
    pub(in crate::ops) fn deriving(library: &'a Library) -> Self {
        Self { note: DERIVED_NOTE, ..Self::streaming(library) }
    }

    /// The blobs whose sources can be named, so that another attempt need not read them again.
    pub(in crate::ops) fn resumable(&self) -> Vec<Digest> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, blob)| *blob).collect()
    }

    /// Takes back what was remembered of the sources of this import: they are not what they should be.
    pub(in crate::ops) fn forget(&self) {
        for (source, _) in self.made.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Err(error) = self.store.set_note(self.note, &source, b"") {
                tracing::warn!("a damaged source stays remembered: {error}");
            }
        }
    }

    /// Whether the store has a blob of that size.
    pub(in crate::ops) fn holds(&self, digest: &Digest, size: u64) -> Result<bool> {
        Ok(self.store.blob_size(digest)? == Some(size))
    }

    /// Stores a small blob.
    pub(in crate::ops) fn bytes(&self, media_type: MediaType, bytes: &[u8]) -> Result<Descriptor> {
        let (digest, _) = self.write(bytes.len() as u64, &mut |sink| sink.write_all(bytes))?;
        Ok(Descriptor { media_type, digest, size: bytes.len() as u64 })
    }

    pub(in crate::ops) fn write(&self, size: u64, fill: &mut Fill<'_>) -> Result<(Digest, bool)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = IngestId::parse(&format!("{INGEST_PREFIX}{}", NEXT.fetch_add(1, Ordering::Relaxed)))?;
        let mut ingest = self.store.start_ingest(&id, Expected::Size(size))?;
        if let Err(error) = fill(&mut ingest) {
            // The first failure is the one to tell.
            let _ = ingest.cancel();
            return Err(error.into());
        }
        let digest = ingest.digest();
        if ingest.offset() == size && self.holds(&digest, size)? {
            ingest.cancel()?;
            return Ok((digest, false));
        }
        match ingest.commit() {
            Ok((digest, _)) => Ok((digest, true)),
            Err(error) => {
                // Nobody resumes it; what it wrote would only fill the disk further.
                if let Err(error) = self.store.discard_ingest(&id) {
                    tracing::warn!("a failed ingest stays: {error}");
                }
                Err(error.into())
            }
        }
    }
}

impl Target for StoreTarget<'_> {
    fn may_have(&self, name: &str, size: u64) -> bool {
        self.known.contains(&(name.to_owned(), size))
    }

    fn has(&self, digest: &Digest, size: u64) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.holds(digest, size)?)
    }

    fn put(&self, size: u64, fill: &mut Fill<'_>) -> Result<(Digest, bool), Box<dyn std::error::Error + Send + Sync>> {
        self.write(size, fill).map_err(|error| match error.downcast::<std::io::Error>() {
            Ok(io) => Box::new(io) as Box<dyn std::error::Error + Send + Sync>,
            Err(other) => other.into(),
        })
    }

    fn remembered(&self, source: &Digest) -> Option<Digest> {
        let note = self.store.note(self.note, source).ok()??;
        let blob = std::str::from_utf8(&note).ok()?.parse().ok()?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((*source, blob));
        Some(blob)
    }

    fn remember(&self, source: &Digest, blob: &Digest) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((*source, *blob));
        if let Err(error) = self.store.set_note(self.note, source, blob.to_string().as_bytes()) {
            tracing::warn!("another attempt will read a tensor again: {error}");
        }
    }
}

/// Adds up what an import tells, for an observer.
pub(in crate::ops) struct ImportProgress<'a> {
    observer: &'a dyn Observer,
    total: u64,
    done: AtomicU64,
}

impl<'a> ImportProgress<'a> {
    pub(in crate::ops) fn new(observer: &'a dyn Observer, total: u64) -> Self {
        Self { observer, total, done: AtomicU64::new(0) }
    }
}

impl import::Progress for ImportProgress<'_> {
    fn event(&self, event: Event<'_>) -> bool {
        if let Event::Bytes(count) = event {
            let done = self.done.fetch_add(count, Ordering::Relaxed) + count;
            self.observer.bytes(done.min(self.total), self.total);
        }
        self.observer.goes_on()
    }
}
