//! Opens the blobs of a load for the scheduler, which knows no store.

use std::fs::File;
use std::io;
use std::sync::Arc;

use library::LoadFiles;
use scheduler::BlobSource;

/// The files of a load, opened when the runner takes them.
#[derive(Debug)]
pub(crate) struct LoadBlobs(LoadFiles);

impl LoadBlobs {
    pub(crate) fn new(files: LoadFiles) -> Arc<Self> {
        Arc::new(Self(files))
    }
}

impl BlobSource for LoadBlobs {
    fn open(&self, index: usize) -> io::Result<File> {
        self.0.open(index)
    }

    fn source_error(&self) -> Option<String> {
        self.0.source_error()
    }
}
