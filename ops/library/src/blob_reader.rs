//! Blocking reads of blobs in the store.

use std::io;
use std::sync::OnceLock;

use content::Digest;
use import::ReadAt;
use store::{BlobFile, Store};

/// Blob of the store as a file. The first read opens it, and it stays open. A missing blob is
/// reported by the first read.
#[derive(Debug)]
pub(crate) struct BlobReader {
    store: Store,
    digest: Digest,
    /// Name for error messages.
    name: String,
    opened: OnceLock<BlobFile>,
}

impl BlobReader {
    /// Creates a reader of a blob; `name` is the name for error messages.
    pub(crate) fn new(store: &Store, digest: &Digest, name: String) -> Self {
        Self { store: store.clone(), digest: *digest, name, opened: OnceLock::new() }
    }

    fn file(&self) -> io::Result<&BlobFile> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = self.store.blobs().open(&self.digest).map_err(as_io_error)?;
        Ok(self.opened.get_or_init(|| opened))
    }
}

/// Converts an error of the store to an I/O error. Keeps the error of the system, if there is one.
pub(crate) fn as_io_error(error: store::Error) -> io::Error {
    match error {
        store::Error::Io { source, .. } => source,
        store::Error::Content(error @ content::Error::BlobNotFound(_)) => {
            io::Error::new(io::ErrorKind::NotFound, error)
        }
        error => io::Error::other(content::Error::from(error)),
    }
}

impl ReadAt for BlobReader {
    fn size(&self) -> u64 {
        self.file().map_or(0, BlobFile::size)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file()?.read_exact_at(buffer, offset).map_err(as_io_error)
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn digest(&self) -> Option<Digest> {
        Some(self.digest)
    }
}
