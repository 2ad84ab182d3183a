//! The role of a tier: a second, larger and slower place for the blobs of one store.
//!
//! A store on a fast disk moves blobs that are rarely used to its tier, and copies them back when
//! they are needed. `bucket::BucketTier` keeps them on object storage, `store::FolderTier` in a
//! folder of another disk. `testsuite::tier` checks both against the same rules.
//!
//! A tier belongs to one store: its constructor gets the [`TierOwner`] and refuses the tier of
//! another store. Nothing else removes blobs from it.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

use crate::{Descriptor, Digest, Error, Expected, Hasher};

/// The bytes of a blob, in pieces of a few MiB at most.
pub type Pieces = BoxStream<'static, Result<Bytes, Error>>;

/// The store that opens a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierOwner {
    /// Its id.
    pub id: String,
    /// Whether the tier should have blobs of it. A place without an owner is then not the tier, but
    /// for instance the empty folder of a disk that is not mounted.
    pub has_blobs: bool,
}

impl TierOwner {
    /// Compares the owner that a place names (`None`: it is new) with this one. Returns whether the
    /// place has to be reserved. `tier` names the place in errors.
    ///
    /// # Errors
    /// The place belongs to another store, or is new although it should have blobs.
    pub fn check(&self, tier: &str, found: Option<&str>) -> Result<bool, Error> {
        let reason = match found {
            Some(found) if found == self.id => return Ok(false),
            Some(other) => format!(
                "the tier `{tier}` belongs to another store, `{other}`; give each store a tier of its own, such as another \
                 prefix or folder"
            ),
            None if self.has_blobs => format!(
                "the tier `{tier}` is empty, expected blobs of this store; mount its disk, or correct bucket, prefix or \
                 endpoint"
            ),
            None => return Ok(true),
        };
        Err(Error::Other(reason.into()))
    }
}

/// A place for the blobs of one store.
#[async_trait]
pub trait BlobTier: fmt::Debug + Send + Sync {
    /// Stores a blob. It is durable when this returns, and visible only if size and digest of the
    /// bytes are those of the descriptor. A blob that exists already may be written again.
    ///
    /// # Errors
    /// [`Error::WrongDigest`] and [`Error::WrongSize`] if the bytes are not the blob's; the errors
    /// of the bytes and of the place.
    async fn put(&self, blob: &Descriptor, bytes: Pieces) -> Result<(), Error>;

    /// The size of a blob in bytes; `None` if the tier does not have it.
    ///
    /// # Errors
    /// The place cannot be read.
    async fn size(&self, digest: &Digest) -> Result<Option<u64>, Error>;

    /// Reads a blob from an offset to its end. The bytes are not verified.
    ///
    /// # Errors
    /// [`Error::BlobNotFound`], or the place cannot be read.
    async fn read(&self, blob: &Descriptor, from: u64) -> Result<Pieces, Error>;

    /// Removes a blob, if it exists.
    ///
    /// # Errors
    /// The place cannot be written.
    async fn remove(&self, digest: &Digest) -> Result<(), Error>;

    /// All blobs, with their sizes in bytes.
    fn list(&self) -> BoxStream<'static, Result<(Digest, u64), Error>>;
}

/// Checks bytes against a descriptor while they are written.
#[derive(Debug)]
pub struct Check {
    expected: Expected,
    size: u64,
    written: u64,
    hasher: Hasher,
}

impl Check {
    /// Begins a check for a blob.
    pub fn of(blob: &Descriptor) -> Self {
        let expected = Expected::Blob { digest: blob.digest, size: blob.size };
        Self { expected, size: blob.size, written: 0, hasher: Hasher::new(blob.digest.algorithm()) }
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// [`Error::WrongSize`] if they are more than the blob has.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.written += bytes.len() as u64;
        if self.written > self.size {
            return Err(Error::WrongSize { expected: self.size, actual: self.written });
        }
        self.hasher.update(bytes);
        Ok(())
    }

    /// Compares all bytes with the descriptor.
    ///
    /// # Errors
    /// [`Error::WrongSize`] or [`Error::WrongDigest`].
    pub fn finish(self) -> Result<(), Error> {
        self.expected.check(self.hasher.finish(), self.written)
    }
}
