//! Reading committed blobs.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use content::{Algorithm, Digest, Hasher};

use crate::extents::ExtentBlob;
use crate::tiered::TieredBlob;
use crate::{Blobs, Error, Store, pieces, sync};

/// An open blob.
#[derive(Debug)]
pub struct BlobFile {
    place: BlobPlace,
    size: u64,
    path: PathBuf,
}

/// Where the bytes of an open blob are.
#[derive(Debug)]
enum BlobPlace {
    Disk(File),
    /// The bytes are parts of other files.
    Files(Store, Digest, Box<ExtentBlob>),
    /// Only the tier had the blob when it was opened.
    Tier(Box<TieredBlob>),
}

impl Blobs<'_> {
    /// The length of a blob in bytes, or `None` if the store does not have it: neither as a file,
    /// nor in other files, nor in a root or the tier. A collection may delete the blob afterwards,
    /// unless something refers to it; [`Guard::keep`](crate::Guard::keep) prevents that.
    pub fn size(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        sync::step();
        match self.size_on_disk(digest)? {
            None => match self.size_in_files(digest)?.or_else(|| self.size_in_roots(digest)) {
                None => self.size_in_tier(digest),
                found => Ok(found),
            },
            found => Ok(found),
        }
    }

    /// Opens a blob for reading. The open file stays readable if a collection deletes the blob. A
    /// blob that only the tier has is copied back when it is read behind its head.
    pub fn open(&self, digest: &Digest) -> Result<BlobFile, Error> {
        if let Some(file) = self.open_on_disk(digest)? {
            return Ok(file);
        }
        let path = self.path(digest);
        let lost = match self.open_extents(digest) {
            Ok(Some(blob)) => return Ok(blob),
            Ok(None) => content::Error::BlobNotFound(*digest).into(),
            Err(error) => error,
        };
        if let Some(blob) = self.open_in_roots(digest) {
            return Ok(blob);
        }
        let tiered = self.0.open_tiered(digest)?.ok_or(lost)?;
        Ok(BlobFile { size: tiered.size(), place: BlobPlace::Tier(Box::new(tiered)), path })
    }

    /// Opens a blob for reading that lies in other files; `None` if it has no entry.
    ///
    /// # Errors
    /// [`Error::SourceLost`] if a file no longer has the bytes.
    pub(crate) fn open_extents(self, digest: &Digest) -> Result<Option<BlobFile>, Error> {
        self.open_entry_of(self.0, digest)
    }

    /// [`Blobs::open_extents`] for an entry in this store or in a root. If the blob must become one
    /// file, it becomes one of this store.
    pub(crate) fn open_entry_of(self, holder: &Store, digest: &Digest) -> Result<Option<BlobFile>, Error> {
        let file = |blob: ExtentBlob| BlobFile {
            size: blob.size(),
            place: BlobPlace::Files(self.0.clone(), *digest, Box::new(blob)),
            path: self.path(digest),
        };
        Ok(holder.open_extents(digest)?.map(file))
    }

    /// Opens a blob for reading; `None` if the disk does not have it.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open_on_disk(&self, digest: &Digest) -> Result<Option<BlobFile>, Error> {
        let Some(file) = self.open_file(digest)? else { return Ok(None) };
        let path = self.path(digest);
        let size = file.metadata().map_err(|e| Error::io("look at", &path, e))?.len();
        Ok(Some(BlobFile { place: BlobPlace::Disk(file), size, path }))
    }

    /// Opens the file of a blob; `None` if the disk does not have it.
    pub(crate) fn open_file(self, digest: &Digest) -> Result<Option<File>, Error> {
        let path = self.path(digest);
        match File::open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("open", &path, e)),
        }
    }

    /// Reads a whole small blob: a manifest, a config, a template. Larger blobs than `limit` bytes
    /// are refused.
    pub fn read(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, Error> {
        self.open(digest)?.whole(limit)
    }

    /// Reads a whole small blob and checks its digest. Use it for documents that decide which other
    /// blobs are kept or deleted.
    pub fn read_verified(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, Error> {
        self.open(digest)?.sound(digest, limit)
    }

    /// All blobs on the disk, with their sizes in bytes. Folders that cannot be listed are logged.
    pub fn list(&self) -> Vec<(Digest, u64)> {
        let mut all = Vec::new();
        self.each(|digest, size| all.push((digest, size)));
        all
    }

    /// Number of all blobs on the disk, and their bytes.
    pub fn totals(&self) -> (u64, u64) {
        let mut totals = (0, 0);
        self.each(|_, size| totals = (totals.0 + 1, totals.1 + size));
        totals
    }

    /// Passes each blob on the disk to `each`, with its size in bytes, as [`Blobs::list`] for
    /// stores of any size.
    pub fn each(&self, mut each: impl FnMut(Digest, u64)) {
        let unreadable = self.0.each_blob(|digest| {
            // A blob may be deleted between the listing and this call.
            if let Ok(Some(size)) = self.size(&digest) {
                each(digest, size);
            }
        });
        for error in unreadable {
            tracing::warn!("{error}");
        }
    }
}

impl BlobFile {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn whole(&self, limit: u64) -> Result<Vec<u8>, Error> {
        if self.size > limit {
            let reason = format!("it has {} bytes, a document of this kind has {limit} at most", self.size);
            return Err(Error::Damaged { path: self.path.clone(), reason });
        }
        self.read(0..self.size)
    }

    /// Reads all bytes, at most `limit`, and checks them against the digest.
    pub(crate) fn sound(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, Error> {
        let bytes = self.whole(limit)?;
        let mut hasher = Hasher::new(digest.algorithm());
        hasher.update(&bytes);
        match hasher.finish() {
            actual if actual == *digest => Ok(bytes),
            actual => {
                let reason = format!("its bytes hash to `{actual}`; `lode repair` fetches it again");
                Err(Error::Damaged { path: self.path.clone(), reason })
            }
        }
    }

    /// Returns the file. Its bytes can be mapped, because a committed blob never changes. A blob
    /// that lies in other files is first copied into the store; [`Blobs::extents`] finds its bytes
    /// without a copy.
    ///
    /// # Errors
    /// The blob cannot be copied from other files or from the tier.
    pub fn into_file(self) -> Result<File, Error> {
        match self.place {
            BlobPlace::Disk(file) => Ok(file),
            BlobPlace::Files(store, digest, _) => {
                store.blobs().copy_here(&digest)?;
                let file = store.blobs().open_file(&digest)?;
                file.ok_or_else(|| content::Error::BlobNotFound(digest).into())
            }
            BlobPlace::Tier(tiered) => tiered.into_file(),
        }
    }

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    /// The blob ends before the buffer is full, or the file cannot be read.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        let file = match &self.place {
            BlobPlace::Disk(file) => file,
            BlobPlace::Files(_, _, blob) => {
                let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.size);
                end.ok_or_else(|| Error::io("read", &self.path, io::ErrorKind::UnexpectedEof))?;
                return blob.read_exact_at(buffer, offset);
            }
            BlobPlace::Tier(tiered) => match tiered.in_head(offset, buffer.len()) {
                Some(bytes) => {
                    buffer.copy_from_slice(bytes);
                    return Ok(());
                }
                None => tiered.file()?,
            },
        };
        file.read_exact_at(buffer, offset).map_err(|e| Error::io("read", &self.path, e))
    }

    /// Passes the bytes of the blob from `begin` on to `each`, in pieces.
    ///
    /// # Errors
    /// The blob cannot be read, or the error of `each`.
    pub fn each_piece(&self, begin: u64, each: impl FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        pieces::each_piece(begin..self.size, |piece, at| self.read_exact_at(piece, at), each)
    }

    /// Computes the digest of the bytes.
    pub(crate) fn hash(&self, algorithm: Algorithm, on_bytes: &mut dyn FnMut(u64) -> bool) -> Result<Digest, Error> {
        let read = |piece: &mut [u8], at| self.read_exact_at(piece, at);
        pieces::hash(self.size, algorithm, &self.path, read, on_bytes)
    }

    /// Reads a range of the blob, cut at its end. It uses reads and not a mapping: if the file is
    /// truncated by another program, the result is an error and not a crash of the process.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let end = range.end.min(self.size);
        let start = range.start.min(end);
        let mut bytes = vec![0; (end - start) as usize];
        self.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }
}
