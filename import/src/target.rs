//! The destination of an import's blobs.

use content::{Digest, Error};

use crate::LocalPart;

/// Destination of blobs. Its errors are those of a content store.
pub trait Target: Sync {
    /// Returns whether a layer with this name and size in bytes is known. If so, hashing it first
    /// may make it unnecessary to write it.
    fn may_have(&self, name: &str, size: u64) -> bool;

    /// Returns whether the blob with this size in bytes exists already.
    fn has(&self, digest: &Digest, size: u64) -> Result<bool, Error>;

    /// Begins a blob of `size` bytes.
    fn begin(&self, size: u64) -> Result<Box<dyn BlobSink + '_>, Error>;

    /// Begins a blob whose bytes stay in local files: `header`, then the parts, each with its size
    /// in bytes. `None` if this target copies all bytes.
    fn begin_in_place<'a>(
        &'a self,
        header: &[u8],
        parts: &[(LocalPart<'_>, u64)],
    ) -> Result<Option<Box<dyn InPlaceBlob + 'a>>, Error> {
        let _ = (header, parts);
        Ok(None)
    }

    /// Returns the digest of the blob that was made from this source before; the blob may be gone.
    /// `source` covers the bytes of the source and the header before them. Called only for sources
    /// that have an identity.
    fn remembered(&self, source: &Digest) -> Option<Digest> {
        let _ = source;
        None
    }

    /// Remembers the blob that was made from this source, for later imports.
    fn remember(&self, source: &Digest, blob: &Digest) {
        let _ = (source, blob);
    }
}

/// A blob whose bytes stay where they lie.
pub trait InPlaceBlob {
    /// Reads the bytes, and makes the blob durable under their digest. `on_bytes` is called with
    /// the number of bytes since its last call, and returns whether to continue. Returns the
    /// digest, and whether the blob was new to the target.
    ///
    /// # Errors
    /// A file was changed meanwhile, or `on_bytes` returned false.
    fn commit(self: Box<Self>, on_bytes: &mut dyn FnMut(u64) -> bool) -> Result<(Digest, bool), Error>;
}

/// A blob that is being written. Dropping it discards its bytes.
pub trait BlobSink {
    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Makes the bytes durable, under their digest. Returns the digest, and whether the bytes were
    /// new to the target.
    fn commit(self: Box<Self>) -> Result<(Digest, bool), Error>;
}
