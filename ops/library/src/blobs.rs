//! Opens blobs of the store as `ReadAt`, for code that reads ranges of files.

use std::sync::Arc;

use content::Digest;
use content::operation::{Context, Result, Unclassified};
use import::{OpenBlob, ReadAt};

use crate::blob_reader::BlobReader;
use crate::library::Library;
use crate::limits::MAX_DOCUMENT;

impl Library {
    /// Opens a blob for reading at any offset. A missing blob is reported by the first read.
    pub fn open(&self, digest: &Digest) -> Arc<dyn ReadAt> {
        self.open_called(digest, &format!("blob {digest}"))
    }

    /// The same with a name for error messages, such as the name that a client gave the file.
    pub fn open_called(&self, digest: &Digest, name: &str) -> Arc<dyn ReadAt> {
        Arc::new(BlobReader::new(&self.store, digest, name.to_owned()))
    }

    /// Returns [`open`](Self::open) as a function, for code that reads original files from their
    /// blobs.
    pub fn opener(&self) -> Arc<OpenBlob> {
        let library = self.clone();
        Arc::new(move |digest: &Digest| Ok(library.open(digest)))
    }

    /// Returns the text of a small blob.
    ///
    /// # Errors
    /// The blob cannot be read, or it is not text.
    pub fn text(&self, digest: &Digest) -> Result<String> {
        let raw = self.store.blobs().read(digest, MAX_DOCUMENT)?;
        String::from_utf8(raw).internal().with_context(|| format!("blob `{digest}` is not text"))
    }
}

/// Returns the first `bytes` bytes of a file, or the whole file if it is shorter.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn beginning(source: &dyn ReadAt, bytes: u64) -> Result<Vec<u8>> {
    let failed = || format!("cannot read `{}`", source.name());
    // An empty read distinguishes a missing file from an empty one.
    source.read_exact_at(&mut [], 0).with_context(failed)?;
    let mut raw = vec![0; source.size().min(bytes) as usize];
    source.read_exact_at(&mut raw, 0).with_context(failed)?;
    Ok(raw)
}
