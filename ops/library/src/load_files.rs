//! The files of a load: blobs of the store and derived files, opened when the runner takes them.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use content::Digest;
use store::{BlobFile, DiskHold, SourceFile, Store, WeakStore};

use crate::blob_reader::as_io_error;

/// The files of a load request, in the order of its blobs. Clones share the list. It does not keep
/// the store open, because a plan lives as long as its model is loaded.
#[derive(Clone, Debug)]
pub struct LoadFiles {
    store: WeakStore,
    files: Arc<[LoadFile]>,
    /// Keeps the blobs of a loaded model on the disk.
    _on_disk: Arc<DiskHold>,
}

/// A file that a runner maps.
#[derive(Debug)]
pub(crate) enum LoadFile {
    Blob(Digest),
    /// A file that was derived from a blob.
    Derived(PathBuf),
    /// A file in which blobs lie.
    Source(Arc<SourceFile>),
}

impl LoadFiles {
    pub(crate) fn new(store: &Store, files: Vec<LoadFile>) -> Self {
        let blob = |file: &LoadFile| match file {
            LoadFile::Blob(digest) => Some(*digest),
            LoadFile::Derived(_) | LoadFile::Source(_) => None,
        };
        let on_disk = store.hold_on_disk(files.iter().filter_map(blob).collect());
        Self { store: store.downgrade(), files: files.into(), _on_disk: Arc::new(on_disk) }
    }

    /// Returns the error of the first file outside of the store that has changed since the plan was
    /// made; `None` if there is none.
    pub fn source_error(&self) -> Option<String> {
        let changed = |file: &LoadFile| match file {
            LoadFile::Source(source) => source.open_unchanged().err(),
            LoadFile::Blob(_) | LoadFile::Derived(_) => None,
        };
        self.files.iter().find_map(changed).map(|error| error.to_string())
    }

    /// Opens the file `index`. The plan has as many files as its request has blobs.
    ///
    /// # Errors
    /// The file is missing or cannot be read, or the store was closed.
    pub fn open(&self, index: usize) -> io::Result<File> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "the load plan has no file of that number");
        match self.files.get(index).ok_or_else(missing)? {
            LoadFile::Derived(path) => File::open(path),
            LoadFile::Source(file) => file.open_unchanged().map_err(as_io_error),
            LoadFile::Blob(digest) => {
                let store = self.store.upgrade().ok_or_else(|| io::Error::other("the store was closed"))?;
                store.blobs().open(digest).and_then(BlobFile::into_file).map_err(as_io_error)
            }
        }
    }
}
