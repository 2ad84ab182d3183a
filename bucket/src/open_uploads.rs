//! The uploads that a process has open. Two requests of a process cannot work on the same upload.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use content::IngestId;

/// The uploads that this process has open.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenUploads(Arc<Mutex<HashSet<IngestId>>>);

impl OpenUploads {
    /// Opens an upload for one request.
    pub(crate) fn open(&self, id: &IngestId) -> Result<OpenUpload, content::Error> {
        if !self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone()) {
            return Err(content::Error::Busy(id.to_string()));
        }
        Ok(OpenUpload { all: self.clone(), id: id.clone() })
    }
}

/// An open upload; dropping it closes it.
#[derive(Debug)]
pub(crate) struct OpenUpload {
    all: OpenUploads,
    id: IngestId,
}

impl OpenUpload {
    pub(crate) fn id(&self) -> &IngestId {
        &self.id
    }
}

impl Drop for OpenUpload {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}
