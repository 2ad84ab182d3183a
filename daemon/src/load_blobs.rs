//! Opens the blobs of a load for the scheduler, which knows no store.

use std::fs::File;
use std::sync::Arc;

use library::LoadFiles;
use scheduler::{BlobSource, OpenError};

/// The files of a load, opened when the runner takes them.
#[derive(Debug)]
pub(crate) struct LoadBlobs(LoadFiles);

impl LoadBlobs {
    pub(crate) fn new(files: LoadFiles) -> Arc<Self> {
        Arc::new(Self(files))
    }
}

impl BlobSource for LoadBlobs {
    fn open(&self, index: usize) -> Result<File, OpenError> {
        let failed = |library::OpenError { path, source }| OpenError { name: path.display().to_string(), source };
        self.0.open(index).map_err(failed)
    }
}
