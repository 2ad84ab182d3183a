//! The files of a load: blobs of the store and derived files, opened when the runner takes them.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The files of a load request, in the order of its blobs. Clones share the list. It does not keep
/// the store open.
#[derive(Clone, Debug)]
pub struct LoadFiles(Arc<[PathBuf]>);

/// A file that cannot be opened.
#[derive(Debug)]
pub struct OpenError {
    /// The path of the file, or its number if the load has no such file.
    pub path: PathBuf,
    /// The error of the system.
    pub source: io::Error,
}

impl LoadFiles {
    pub(crate) fn new(files: Vec<PathBuf>) -> Self {
        Self(files.into())
    }

    /// Opens the file `index`. The plan has as many files as its request has blobs.
    ///
    /// # Errors
    /// The file is missing or cannot be read.
    pub fn open(&self, index: usize) -> Result<File, OpenError> {
        let Some(path) = self.0.get(index) else {
            let source = io::Error::new(io::ErrorKind::NotFound, "the load plan has no file of that number");
            return Err(OpenError { path: PathBuf::from(index.to_string()), source });
        };
        File::open(path).map_err(|source| OpenError { path: path.clone(), source })
    }
}
