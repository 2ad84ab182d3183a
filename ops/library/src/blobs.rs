//! Opening blobs of the store. Whoever reads one opens it here, whether it is in the store or (later) elsewhere.

use std::sync::Arc;

use anyhow::{Context, Result};
use content::Digest;
use import::{LocalFile, OpenBlob, ReadAt};

use crate::library::Library;
use crate::limits::MAX_DOCUMENT;

impl Library {
    /// A blob, for reading any part of it. Whether it is there shows with the first read.
    pub fn open(&self, digest: &Digest) -> Arc<dyn ReadAt> {
        Arc::new(LocalFile::new(self.store.path(digest)).with_digest(*digest))
    }

    /// The same for a file that a client has sent, under the name that the client gave it.
    pub fn open_called(&self, digest: &Digest, name: &str) -> Arc<dyn ReadAt> {
        Arc::new(LocalFile::new(self.store.path(digest)).with_digest(*digest).called(name))
    }

    /// The same as a function of its own, for those who read files back from their blobs.
    pub fn opener(&self) -> Arc<OpenBlob> {
        let library = self.clone();
        Arc::new(move |digest: &Digest| Ok(library.open(digest)))
    }

    /// The text of a small blob.
    ///
    /// # Errors
    /// The blob cannot be read, or is not text.
    pub fn text(&self, digest: &Digest) -> Result<String> {
        let raw = self.store.read_blob(digest, MAX_DOCUMENT)?;
        String::from_utf8(raw).with_context(|| format!("blob `{digest}` is not text"))
    }
}

/// The first bytes of a file, or all where there are fewer.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn beginning(source: &dyn ReadAt, bytes: u64) -> Result<Vec<u8>> {
    let failed = || format!("cannot read `{}`", source.name());
    // An empty read tells a file that is not there from an empty one.
    source.read_exact_at(&mut [], 0).with_context(failed)?;
    let mut raw = vec![0; source.size().min(bytes) as usize];
    source.read_exact_at(&mut raw, 0).with_context(failed)?;
    Ok(raw)
}
