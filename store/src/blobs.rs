//! Reading committed blobs.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use content::{Digest, Hasher};

use crate::{Blobs, Error, sync};

/// An open blob.
#[derive(Debug)]
pub struct BlobFile {
    file: File,
    size: u64,
    path: PathBuf,
}

impl Blobs<'_> {
    /// The length of a blob in bytes, or `None` if it is not in the store. A collection may delete
    /// the blob afterwards, unless something refers to it; [`Guard::keep`](crate::Guard::keep)
    /// prevents that.
    pub fn size(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        sync::step();
        let path = self.path(digest);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("look at", &path, e)),
        }
    }

    /// Opens a blob for reading. The open file stays readable if a collection deletes the blob.
    pub fn open(&self, digest: &Digest) -> Result<BlobFile, Error> {
        let path = self.path(digest);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(content::Error::BlobNotFound(*digest).into());
            }
            Err(e) => return Err(Error::io("open", &path, e)),
        };
        let size = file.metadata().map_err(|e| Error::io("look at", &path, e))?.len();
        Ok(BlobFile { file, size, path })
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

    /// Returns the file. Its bytes can be mapped, because a committed blob never changes.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    /// The blob ends before the buffer is full, or the file cannot be read.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        self.file.read_exact_at(buffer, offset).map_err(|e| Error::io("read", &self.path, e))
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
