//! The target of imports: the store, and its notes about known sources.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use content::text::size;
use content::{Descriptor, Digest, Expected, IngestId, MediaType};
use import::{Event, Fill, NamedFile, Target};
use library::{IMPORT_INGESTS, Library, Observer};
use manifests::{Layer, media_types};
use store::Guard;

/// Buffer size for copying whole files, in bytes.
const BUFFER: u64 = 1 << 20;

/// The store as an importer's target.
pub struct StoreTarget<'a> {
    library: &'a Library,
    /// Keeps the blobs that the import finds.
    guard: &'a Guard,
    /// Names and sizes of all tensor layers in all models, which an import may find again.
    known: HashSet<(String, u64)>,
    /// Kind of the notes that record the blob of a source.
    note: &'static str,
    /// Sources of this import and their blobs, found in notes or newly made.
    made: Mutex<Vec<(Digest, Digest)>>,
}

/// Kind of the notes that record the blob of a source. A lost note costs reading the source again.
const SOURCE_NOTE: &str = "source-blob";
/// Kind of the notes that record a derived blob. Their subject is the key of the derivation, which
/// is not a blob. A lost note costs computing the blob again.
const DERIVED_NOTE: &str = "derived";

impl<'a> StoreTarget<'a> {
    /// Creates a target for sources that are as fast to read as the store: a tensor with a known
    /// name and size is hashed before it is written.
    pub fn new(library: &'a Library, guard: &'a Guard) -> Result<Self> {
        let mut known = HashSet::new();
        for tag in library.names().list() {
            // A model that cannot be read only loses this shortcut.
            let Ok(manifest) = library.manifest(&tag.digest) else { continue };
            known.extend(
                manifest
                    .layers_of(media_types::TENSOR)
                    .filter_map(|layer| Some((layer.name()?.to_owned(), layer.size()))),
            );
        }
        Ok(Self { known, ..Self::streaming(library, guard) })
    }

    /// Creates a target for remote sources: no tensor is read twice to avoid a write.
    pub fn streaming(library: &'a Library, guard: &'a Guard) -> Self {
        Self { library, guard, known: HashSet::new(), note: SOURCE_NOTE, made: Mutex::default() }
    }

    /// Creates a target for blobs that are derived from other blobs.
    pub fn deriving(library: &'a Library, guard: &'a Guard) -> Self {
        Self { note: DERIVED_NOTE, ..Self::streaming(library, guard) }
    }

    /// Returns the blobs whose sources are known, so that another attempt need not read the sources
    /// again.
    pub fn resumable(&self) -> Vec<Digest> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, blob)| *blob).collect()
    }

    /// Deletes the notes about sources of this import, because they turned out to be wrong.
    pub fn forget(&self) {
        for (source, _) in self.made.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            self.library.notes().set(self.note, &source, b"");
        }
    }

    /// Returns true if the store has a blob of that size, which the guard then keeps.
    pub fn keeps(&self, digest: &Digest, size: u64) -> Result<bool> {
        Ok(self.guard.keep(digest)? == Some(size))
    }

    /// Stores a small blob.
    pub fn bytes(&self, media_type: MediaType, bytes: &[u8]) -> Result<Descriptor> {
        let (digest, _) = self.write(bytes.len() as u64, &mut |sink| sink.write_all(bytes))?;
        Ok(Descriptor { media_type, digest, size: bytes.len() as u64 })
    }

    /// Stores the data that `fill` writes. Returns its digest and whether it is new.
    pub fn write(&self, size: u64, fill: &mut Fill<'_>) -> Result<(Digest, bool)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = IngestId::parse(&format!("{IMPORT_INGESTS}{}", NEXT.fetch_add(1, Ordering::Relaxed)))?;
        // A failed ingest is never resumed, and would only occupy disk space.
        let discard = || {
            if let Err(error) = self.library.blobs().discard_ingest(&id) {
                tracing::warn!("cannot delete a failed ingest: {error}");
            }
        };
        let mut ingest = self.library.blobs().start_ingest(&id, Expected::Size(size)).inspect_err(|_| discard())?;
        if let Err(error) = fill(&mut ingest) {
            // The first error is reported, not an error of the cleanup.
            let _ = ingest.cancel();
            return Err(error.into());
        }
        let digest = ingest.digest();
        if ingest.offset() == size && self.keeps(&digest, size)? {
            ingest.cancel()?;
            return Ok((digest, false));
        }
        let (digest, _) = ingest.commit().inspect_err(|_| discard())?;
        Ok((digest, true))
    }
}

impl Target for StoreTarget<'_> {
    fn may_have(&self, name: &str, size: u64) -> bool {
        self.known.contains(&(name.to_owned(), size))
    }

    fn has(&self, digest: &Digest, size: u64) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.keeps(digest, size)?)
    }

    fn put(&self, size: u64, fill: &mut Fill<'_>) -> Result<(Digest, bool), Box<dyn std::error::Error + Send + Sync>> {
        self.write(size, fill).map_err(|error| match error.downcast::<std::io::Error>() {
            Ok(io) => Box::new(io) as Box<dyn std::error::Error + Send + Sync>,
            Err(other) => other.into(),
        })
    }

    fn remembered(&self, source: &Digest) -> Option<Digest> {
        let note = self.library.notes().get(self.note, source)?;
        let blob = std::str::from_utf8(&note).ok()?.parse().ok()?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((*source, blob));
        Some(blob)
    }

    fn remember(&self, source: &Digest, blob: &Digest) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((*source, *blob));
        self.library.notes().set(self.note, source, blob.to_string().as_bytes());
    }
}

/// Adds up the progress of an import for an observer.
pub(crate) struct ImportProgress<'a> {
    observer: &'a dyn Observer,
    total: u64,
    done: AtomicU64,
}

impl<'a> ImportProgress<'a> {
    pub(crate) fn new(observer: &'a dyn Observer, total: u64) -> Self {
        Self { observer, total, done: AtomicU64::new(0) }
    }
}

impl import::ImportObserver for ImportProgress<'_> {
    fn event(&self, event: Event<'_>) -> bool {
        match event {
            Event::Bytes(count) => {
                let done = self.done.fetch_add(count, Ordering::Relaxed) + count;
                self.observer.bytes(done.min(self.total), self.total);
            }
            Event::Layer { name, descriptor, .. } => self.observer.blob(name, descriptor),
        }
        self.observer.goes_on()
    }
}

/// Stores a file as one layer. A file that is already a blob is not copied.
pub fn whole_file(target: &StoreTarget<'_>, file: &NamedFile, media_type: MediaType, name: &str) -> Result<Layer> {
    let failed = || format!("cannot copy `{}`", file.source.name());
    file.source.read_exact_at(&mut [], 0).with_context(failed)?;
    let size = file.source.size();
    if let Some(digest) = file.source.digest()
        && target.keeps(&digest, size)?
    {
        return Ok(Layer::named(Descriptor { media_type, digest, size }, name));
    }
    let mut buffer = vec![0; BUFFER.min(size) as usize];
    let copied = target.write(size, &mut |sink| {
        let mut at = 0;
        while at < size {
            let piece = &mut buffer[..BUFFER.min(size - at) as usize];
            file.source.read_exact_at(piece, at)?;
            sink.write_all(piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    });
    let (digest, _) = copied.with_context(failed)?;
    Ok(Layer::named(Descriptor { media_type, digest, size }, name))
}

/// Returns an error if an import cannot fit on the disk. An import needs its size, less the tensors
/// that it shares with stored models, which are only known later. It can share at most the bytes in
/// the store, and rarely more than nine tenths of its size. A disk that fills up later causes a
/// separate error, which leaves no partial blob.
pub(crate) fn ensure_space(library: &Library, total: u64) -> Result<()> {
    let stored = library.stored_bytes();
    library.ensure_room(total.saturating_sub(stored).max(total / 10), &format!("a model of {}", size(total)))
}
