//! The target of imports: the store, and its notes about known sources.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use content::operation::{Context, Result};
use content::text::size;
use content::{Descriptor, Digest, Expected, IngestId, MediaType};
use import::{BlobSink, InPlaceBlob, LocalPart, NamedFile, Target};
use library::{IMPORT_INGESTS, Library};
use manifests::{Layer, media_types};
use store::{AdoptedFile, Extent, Guard, IngestFile};

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
    /// The files in which blobs stay, by path; `None` if all bytes are copied.
    adopted: Option<Mutex<HashMap<PathBuf, AdoptedFile>>>,
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

    /// Creates a target for local files in which tensors stay: only headers and documents are
    /// copied.
    pub fn in_place(library: &'a Library, guard: &'a Guard) -> Self {
        Self { adopted: Some(Mutex::default()), ..Self::streaming(library, guard) }
    }

    /// Returns whether tensors stay in local files.
    pub(crate) fn is_in_place(&self) -> bool {
        self.adopted.is_some()
    }

    /// Returns whether the adopted files are clones; false if the import has adopted none.
    pub(crate) fn has_clones(&self) -> bool {
        let adopted = self.adopted.as_ref().map(|files| files.lock().unwrap_or_else(PoisonError::into_inner));
        adopted.is_some_and(|files| !files.is_empty() && files.values().all(AdoptedFile::is_clone))
    }

    /// Creates a target for remote sources: no tensor is read twice to avoid a write.
    pub fn streaming(library: &'a Library, guard: &'a Guard) -> Self {
        Self { library, guard, known: HashSet::new(), note: SOURCE_NOTE, made: Mutex::default(), adopted: None }
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
    pub fn keeps(&self, digest: &Digest, size: u64) -> Result<bool, store::Error> {
        Ok(self.guard.keep(digest)? == Some(size))
    }

    /// Stores a small blob.
    pub fn bytes(&self, media_type: MediaType, bytes: &[u8]) -> Result<Descriptor> {
        let mut output = self.output(bytes.len() as u64)?;
        output.append(bytes)?;
        let (digest, _) = output.commit()?;
        Ok(Descriptor { media_type, digest, size: bytes.len() as u64 })
    }

    /// Begins a blob of `size` bytes.
    fn output(&self, size: u64) -> Result<StoreSink<'_>, store::Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = IngestId::parse(&format!("{IMPORT_INGESTS}{}", NEXT.fetch_add(1, Ordering::Relaxed)))?;
        let begun = self.library.blobs().start_ingest(&id, Expected::Size(size));
        let ingest = begun.inspect_err(|_| discard(self.library, &id))?;
        Ok(StoreSink { target: self, id, size, ingest: Some(ingest) })
    }
}

/// A blob that is being written to the store. A failed ingest is discarded: it is never resumed,
/// and would only occupy disk space.
struct StoreSink<'a> {
    target: &'a StoreTarget<'a>,
    id: IngestId,
    size: u64,
    /// `None` once it is committed or discarded.
    ingest: Option<IngestFile>,
}

impl StoreSink<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<(), store::Error> {
        self.ingest.as_mut().expect("invariant: an uncommitted sink has its ingest").append(bytes)
    }

    /// Makes the bytes a blob, unless the store has it.
    fn commit(mut self) -> Result<(Digest, bool), store::Error> {
        let ingest = self.ingest.take().expect("invariant: an uncommitted sink has its ingest");
        let digest = ingest.digest();
        if ingest.offset() == self.size && self.target.keeps(&digest, self.size)? {
            ingest.cancel()?;
            return Ok((digest, false));
        }
        let (digest, _) = ingest.commit().inspect_err(|_| discard(self.target.library, &self.id))?;
        Ok((digest, true))
    }
}

impl Drop for StoreSink<'_> {
    fn drop(&mut self) {
        if let Some(ingest) = self.ingest.take() {
            // The error of the write is the one to report, not an error of the cleanup.
            let _ = ingest.cancel();
        }
    }
}

fn discard(library: &Library, id: &IngestId) {
    if let Err(error) = library.blobs().discard_ingest(id) {
        tracing::warn!("cannot delete a failed ingest: {error}");
    }
}

impl BlobSink for StoreSink<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<(), content::Error> {
        Ok(StoreSink::append(self, bytes)?)
    }

    fn commit(self: Box<Self>) -> Result<(Digest, bool), content::Error> {
        Ok(StoreSink::commit(*self)?)
    }
}

/// A blob that stays in local files.
struct StoreInPlaceBlob<'a> {
    target: &'a StoreTarget<'a>,
    header: Vec<u8>,
    extents: Vec<Extent>,
}

impl InPlaceBlob for StoreInPlaceBlob<'_> {
    fn commit(self: Box<Self>, on_bytes: &mut dyn FnMut(u64) -> bool) -> Result<(Digest, bool), content::Error> {
        let StoreTarget { library, guard, .. } = self.target;
        Ok(library.blobs().refer(&self.header, &self.extents, guard, on_bytes)?)
    }
}

impl Target for StoreTarget<'_> {
    fn begin_in_place<'b>(
        &'b self,
        header: &[u8],
        parts: &[(LocalPart<'_>, u64)],
    ) -> Result<Option<Box<dyn InPlaceBlob + 'b>>, content::Error> {
        let Some(adopted) = &self.adopted else { return Ok(None) };
        let mut adopted = adopted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut extents = Vec::new();
        for (part, size) in parts {
            if !adopted.contains_key(part.path) {
                let new = self.library.blobs().adopt_file(part.path, part.file)?;
                adopted.insert(part.path.to_owned(), new);
            }
            let file = &adopted[part.path];
            extents.push(Extent { file: Arc::clone(file.stored()), offset: part.offset, size: *size });
        }
        Ok(Some(Box::new(StoreInPlaceBlob { target: self, header: header.to_vec(), extents })))
    }

    fn may_have(&self, name: &str, size: u64) -> bool {
        self.known.contains(&(name.to_owned(), size))
    }

    fn has(&self, digest: &Digest, size: u64) -> Result<bool, content::Error> {
        Ok(self.keeps(digest, size)?)
    }

    fn begin(&self, size: u64) -> Result<Box<dyn BlobSink + '_>, content::Error> {
        Ok(Box::new(self.output(size)?))
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
    let mut output = target.output(size).with_context(failed)?;
    let mut at = 0;
    while at < size {
        let piece = &mut buffer[..BUFFER.min(size - at) as usize];
        file.source.read_exact_at(piece, at).with_context(failed)?;
        output.append(piece).with_context(failed)?;
        at += piece.len() as u64;
    }
    let (digest, _) = output.commit().with_context(failed)?;
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
