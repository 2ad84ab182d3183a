//! The files of a load: blobs of the store and derived files, opened when the runner takes them.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use content::Digest;

use crate::library::Library;

/// The files of a load request, in the order of its blobs. Clones share the list.
#[derive(Clone, Debug)]
pub struct LoadFiles {
    library: Library,
    files: Arc<[LoadFile]>,
}

/// A file that a runner maps.
#[derive(Clone, Debug)]
pub(crate) enum LoadFile {
    /// A blob of the store.
    Blob(Digest),
    /// A file that was derived from a blob, for example a token table.
    Derived(PathBuf),
}

/// A file that cannot be opened.
#[derive(Debug)]
pub struct OpenError {
    /// The path of the file.
    pub path: PathBuf,
    /// The error of the system.
    pub source: io::Error,
}

impl LoadFiles {
    pub(crate) fn new(library: &Library, files: Vec<LoadFile>) -> Self {
        Self { library: library.clone(), files: files.into() }
    }

    /// Opens the file `index`. The plan has as many files as its request has blobs.
    ///
    /// # Errors
    /// The file is missing or cannot be read.
    pub fn open(&self, index: usize) -> Result<File, OpenError> {
        let path = match self.files.get(index) {
            Some(LoadFile::Blob(digest)) => self.library.store.blobs().path(digest),
            Some(LoadFile::Derived(path)) => path.clone(),
            None => {
                let source = io::Error::new(io::ErrorKind::NotFound, "the load plan has no file of that number");
                return Err(OpenError { path: PathBuf::from(index.to_string()), source });
            }
        };
        File::open(&path).map_err(|source| OpenError { path, source })
    }
}
