//! Blobs that lie in other files: in a GGUF file, or in a shard of another tool's model.
//!
//! ```text
//! extents/sha256/ab/ab12…   the header of a blob, and where its other bytes lie (`extent_entry`)
//! adopted/<hex>             clones of such files, where the file system can clone (`clones`)
//! ```
//! A blob exists if its file, its entry or its entry in the tier exists; a file comes first. The
//! digest in the name of an entry was computed from the bytes of the source while nothing changed
//! it.
//!
//! The source is looked at whenever the blob is opened, and after each read: device, inode, size
//! and times must be as they were. If only size and time of the last write are, the blob is hashed
//! once more, and the entry gets the new identity. In all other cases the blob is missing, with
//! [`Error::SourceLost`] as the reason; it is there again when the source is.
//!
//! An entry is removed by a collection, like a file, or after the blob has got a file.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use content::{Algorithm, Digest};

use crate::extent_entry::{EntryExtent, ExtentEntry, MAX_ENTRY};
use crate::shelves::each_in_shelves;
use crate::source_file::{CHANGED, Extent, Likeness, SourceFile, read_from, unreachable_reason};
use crate::sync::atomic::Ordering;
use crate::sync::{MutexGuard, PoisonError};
use crate::tier_entry::parent;
use crate::{Blobs, CrashPoint, Error, Guard, Store, files, pieces};

/// Blobs that were hashed again and whose entries could not be written, because the store is
/// read-only.
pub(crate) type RecheckedBlobs = HashMap<Digest, RecheckedFiles>;

/// The files of an entry before and after its blob was hashed again.
#[derive(Debug)]
pub(crate) struct RecheckedFiles {
    recorded: Vec<Arc<SourceFile>>,
    now: Vec<Arc<SourceFile>>,
}

/// An open blob that lies in other files.
#[derive(Debug)]
pub(crate) struct ExtentBlob {
    entry: ExtentEntry,
    /// The files of the entry, in its order.
    opened: Vec<File>,
}

/// Where a blob lies in other files.
#[derive(Debug)]
pub struct BlobExtents(ExtentEntry);

impl BlobExtents {
    /// The file that contains a range of the blob as a whole, and the offset of the range there;
    /// `None` if it lies in the header, or in several pieces.
    pub fn locate(&self, range: Range<u64>) -> Option<(&Arc<SourceFile>, u64)> {
        let mut found: Option<(usize, u64, u64)> = None;
        for (part, within) in parts(&self.0, range.start, range.end.checked_sub(range.start)?) {
            let BlobPart::Extent(EntryExtent { file, .. }, offset) = part else { return None };
            let length = within.end - within.start;
            found = match found {
                None => Some((file, offset, length)),
                Some((first, begin, so_far)) if first == file && begin + so_far == offset => {
                    Some((first, begin, so_far + length))
                }
                Some(_) => return None,
            };
        }
        let (file, offset, length) = found?;
        (length == range.end - range.start).then(|| (&self.0.files[file], offset))
    }

    /// The files, each once.
    pub fn files(&self) -> &[Arc<SourceFile>] {
        &self.0.files
    }
}

/// The source of some bytes of a blob.
#[derive(Clone, Copy)]
enum BlobPart {
    /// The header, from this offset on.
    Header(u64),
    /// An extent, and the offset in its file.
    Extent(EntryExtent, u64),
}

/// The parts of `size` bytes of a blob at `offset`, each with its range among these bytes. The
/// parts end where the blob ends.
fn parts(entry: &ExtentEntry, offset: u64, size: u64) -> Vec<(BlobPart, Range<u64>)> {
    let header = std::iter::once((None, entry.header.len() as u64));
    let all = header.chain(entry.extents.iter().map(|extent| (Some(*extent), extent.size)));
    let end = offset.saturating_add(size);
    let (mut found, mut begin) = (Vec::new(), 0);
    for (extent, length) in all {
        let (from, to) = (offset.max(begin), end.min(begin + length));
        if from < to {
            let part = match extent {
                None => BlobPart::Header(from),
                Some(extent) => BlobPart::Extent(extent, extent.offset + (from - begin)),
            };
            found.push((part, from - offset..to - offset));
        }
        begin += length;
    }
    found
}

impl ExtentBlob {
    /// Opens the files of an entry. Also returns the first file whose bytes are in doubt: then the
    /// entry has the identities that the files have now, and the blob must be hashed again.
    fn open(mut entry: ExtentEntry) -> Result<(Self, Option<usize>), Error> {
        let (mut opened, mut doubtful) = (Vec::with_capacity(entry.files.len()), None);
        for (position, source) in entry.files.iter_mut().enumerate() {
            let (file, likeness) = source.open().map_err(|e| source.lost(unreachable_reason(&e)))?;
            match likeness {
                Likeness::Same => {}
                Likeness::Doubtful => {
                    doubtful.get_or_insert(position);
                }
                Likeness::Different => return Err(source.lost(CHANGED.to_owned())),
            }
            let now = source.as_it_is(&file).map_err(|e| Error::io("look at", source.path(), e))?;
            if now != **source {
                *source = Arc::new(now);
            }
            opened.push(file);
        }
        Ok((Self { entry, opened }, doubtful))
    }

    pub(crate) fn size(&self) -> u64 {
        self.entry.size()
    }

    /// Fills the buffer with the bytes at `offset`. The blob has them all.
    ///
    /// # Errors
    /// A file cannot be read, or was changed.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        let mut files_read = Vec::new();
        for (part, within) in parts(&self.entry, offset, buffer.len() as u64) {
            let target = &mut buffer[within.start as usize..within.end as usize];
            match part {
                BlobPart::Header(from) => {
                    let from = from as usize;
                    target.copy_from_slice(&self.entry.header[from..from + target.len()]);
                }
                BlobPart::Extent(extent, at) => {
                    read_from(&self.opened[extent.file], &self.entry.files[extent.file], target, at)?;
                    if files_read.last() != Some(&extent.file) {
                        files_read.push(extent.file);
                    }
                }
            }
        }
        // Afterwards: a file that is as it was has not been changed while it was read.
        files_read.into_iter().try_for_each(|file| self.ensure_unchanged(file))
    }

    fn ensure_unchanged(&self, file: usize) -> Result<(), Error> {
        let source = &self.entry.files[file];
        match source.likeness_of(&self.opened[file]).map_err(|e| Error::io("look at", source.path(), e))? {
            Likeness::Same => Ok(()),
            Likeness::Doubtful | Likeness::Different => Err(source.lost(CHANGED.to_owned())),
        }
    }

    fn hash(&self, algorithm: Algorithm, path: &Path, on_bytes: &mut dyn FnMut(u64) -> bool) -> Result<Digest, Error> {
        pieces::hash(self.size(), algorithm, path, |piece, at| self.read_exact_at(piece, at), on_bytes)
    }
}

impl Store {
    /// Reads the entry of a blob; `None` if there is none.
    fn entry(&self, digest: &Digest) -> Result<Option<ExtentEntry>, Error> {
        let path = self.0.layout.extent_entry(digest);
        let failed = |e| Error::io("read", &path, e);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_ENTRY).read_to_end(&mut bytes).map_err(failed)?;
        let mut entry = ExtentEntry::parse(&bytes, self.home()).map_err(|reason| Error::Damaged {
            reason: format!("{reason}; remove the file and adopt the model again, or run `lode repair`"),
            path: path.clone(),
        })?;
        if let Some(rechecked) = self.rechecked().get(digest).filter(|rechecked| rechecked.recorded == entry.files) {
            entry.files.clone_from(&rechecked.now);
        }
        // A writer of a root must not make this process read other files.
        let is_beneath = |file: &Arc<SourceFile>| file.path().starts_with(self.home());
        Ok((!self.0.is_root || entry.files.iter().all(is_beneath)).then_some(entry))
    }

    fn write_entry(&self, digest: &Digest, entry: &ExtentEntry) -> Result<(), Error> {
        let path = self.0.layout.extent_entry(digest);
        let shelf = parent(&path);
        files::create_folder_durably(shelf)?;
        let number = self.0.derivations.fetch_add(1, Ordering::Relaxed);
        let new = self.0.layout.temporary().join(format!("extents-{number}"));
        files::write_synced(&new, &entry.to_bytes(self.home()))?;
        let _placement = self.0.pending_renames.begin(digest);
        fs::rename(&new, &path).map_err(|e| Error::io("write", &path, e))?;
        self.reach(CrashPoint::EntryRenamed);
        self.0.pending_renames.sync(shelf)
    }

    /// Opens a blob that lies in other files; `None` if it has no entry.
    ///
    /// # Errors
    /// [`Error::SourceLost`] if a file no longer has the bytes.
    pub(crate) fn open_extents(&self, digest: &Digest) -> Result<Option<ExtentBlob>, Error> {
        let Some(entry) = self.entry(digest)? else { return Ok(None) };
        let recorded = entry.files.clone();
        let (blob, doubtful) = ExtentBlob::open(entry)?;
        if let Some(file) = doubtful {
            if blob.hash(digest.algorithm(), self.home(), &mut |_| true)? != *digest {
                return Err(blob.entry.files[file].lost(CHANGED.to_owned()));
            }
            self.record_identity(digest, recorded, &blob.entry);
        }
        Ok(Some(blob))
    }

    /// Records the files of a blob that was hashed again.
    fn record_identity(&self, digest: &Digest, recorded: Vec<Arc<SourceFile>>, entry: &ExtentEntry) {
        if self.ensure_writable().is_ok() {
            match self.write_entry(digest, entry) {
                Ok(()) => return,
                Err(error) => tracing::warn!("a blob will be hashed again at the next start: {error}"),
            }
        }
        self.rechecked().insert(*digest, RecheckedFiles { recorded, now: entry.files.clone() });
    }

    fn rechecked(&self) -> MutexGuard<'_, RecheckedBlobs> {
        self.0.rechecked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes each entry to `each`. Returns the errors of folders that cannot be read.
    pub(crate) fn each_entry(&self, mut each: impl FnMut(Digest, Result<ExtentEntry, Error>)) -> Vec<Error> {
        each_in_shelves(&self.0.layout.extents(), |digest| {
            if let Some(entry) = self.entry(&digest).transpose() {
                each(digest, entry);
            }
        })
    }

    /// Removes the entry of a blob, if it has one.
    pub(crate) fn forget_extents(&self, digest: &Digest) -> Result<bool, Error> {
        let removed = files::remove(&self.0.layout.extent_entry(digest))?;
        if removed {
            self.rechecked().remove(digest);
        }
        Ok(removed)
    }
}

impl Blobs<'_> {
    /// Adds a blob that lies in other files: `header`, then the extents. Its bytes are read once,
    /// to compute the digest; `on_bytes` is called with the number of bytes since its last call,
    /// and returns whether to continue. Returns the digest, and whether the blob is new. It is
    /// durable when this returns, and no collection removes it while the guard lives.
    ///
    /// # Errors
    /// A file cannot be read or was changed, the entry cannot be written, or `on_bytes` returned
    /// false.
    pub fn refer(
        &self,
        header: &[u8],
        extents: &[Extent],
        guard: &Guard,
        on_bytes: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(Digest, bool), Error> {
        self.0.ensure_writable()?;
        let (blob, _) = ExtentBlob::open(ExtentEntry::new(header, extents))?;
        let digest = blob.hash(Algorithm::Sha256, self.0.home(), on_bytes)?;
        let known = guard.keep(&digest)?.is_some();
        // An entry is written anew: its source may be lost or in doubt.
        if self.size_on_disk(&digest)?.is_none() && !self.is_only_in_root(&digest) {
            self.0.0.collection_lock.touch(&digest);
            self.0.write_entry(&digest, &blob.entry)?;
        }
        Ok((digest, !known))
    }

    /// Where a blob lies in other files; `None` if it has a file, or no entry. The files were
    /// unchanged when this returned.
    ///
    /// # Errors
    /// [`Error::SourceLost`] if a file no longer has the bytes, and the tier does not have the
    /// blob.
    pub fn extents(&self, digest: &Digest) -> Result<Option<BlobExtents>, Error> {
        if self.size_on_disk(digest)?.is_some() {
            return Ok(None);
        }
        match self.0.open_extents(digest) {
            Ok(Some(blob)) => Ok(Some(BlobExtents(blob.entry))),
            Ok(None) => Ok(self.extents_in_roots(digest)),
            Err(Error::SourceLost { .. }) if self.size_elsewhere(digest)?.is_some() => {
                Ok(self.extents_in_roots(digest))
            }
            Err(error) => Err(error),
        }
    }

    /// The size of a blob in bytes, if it lies in other files that may still have its bytes.
    ///
    /// # Errors
    /// The entry cannot be read.
    pub fn size_in_files(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let Some(entry) = self.0.entry(digest)? else { return Ok(None) };
        let is_there = entry.files.iter().all(|file| file.look().is_ok_and(|now| now != Likeness::Different));
        Ok(is_there.then(|| entry.size()))
    }

    /// The size of a blob in bytes, if a root or the tier has it.
    fn size_elsewhere(self, digest: &Digest) -> Result<Option<u64>, Error> {
        match self.size_in_roots(digest) {
            None => self.size_in_tier(digest),
            found => Ok(found),
        }
    }

    /// The reason why a blob is missing, if one is known: the file in which it lies was lost, or a
    /// root cannot be read.
    ///
    /// # Errors
    /// The entry cannot be read.
    pub fn missing_reason(&self, digest: &Digest) -> Result<Option<Error>, Error> {
        match self.0.open_extents(digest) {
            Ok(Some(_)) => Ok(None),
            Ok(None) => Ok(self.0.root_error()),
            Err(error @ Error::SourceLost { .. }) => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }

    /// Passes each blob that has an entry and no file to `each`, with its size in bytes. Returns
    /// the errors of entries and folders that cannot be read.
    pub fn each_in_files(&self, mut each: impl FnMut(Digest, u64)) -> Vec<Error> {
        let mut failed = Vec::new();
        let unreadable = self.0.each_entry(|digest, entry| match entry {
            Ok(entry) if matches!(self.size_on_disk(&digest), Ok(None)) => each(digest, entry.size()),
            Ok(_) => {}
            Err(error) => failed.push(error),
        });
        failed.extend(unreadable);
        failed
    }
}
