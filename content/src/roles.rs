//! The roles of a content store.
//!
//! Transfers and the registry see a store through two small roles: [`Provider`] reads blobs,
//! [`Ingester`] writes them. The store on disk, the store in memory and a registry's storage
//! implement both; a repository at a remote registry is a provider. `testsuite` (feature
//! `testsuite`) checks them against the same rules. All other code uses `store::Store` itself,
//! which has more operations: paths, mapping, deletion, tags. A second place for blobs of a store
//! has the role [`BlobTier`](crate::BlobTier): see `docs/internals/store.md`, "Presence".
//!
//! # The life cycle of a blob
//! ```text
//! ingest(id) ──write──▶ … ──write──▶ commit ──▶ blob, readable by digest
//!      ▲                  │
//!      └── later, resumed ┘ paused: the bytes so far stay under the id, invisible
//! ```

use std::fmt;
use std::future::Future;
use std::ops::Range;

use bytes::Bytes;

use crate::{Descriptor, Digest, Error};

/// The name of an ingest: 1 to 128 characters of `A-Z a-z 0-9 . _ -`; the first is not a dot.
///
/// # Examples
///
/// ```
/// use lode_content::{Digest, IngestId};
///
/// assert!(IngestId::parse("upload-17").is_ok());
/// assert!(IngestId::parse("../escape").is_err());
/// // Two transfers of one blob use the same ingest.
/// assert_eq!(IngestId::of(&Digest::of(b"a")), IngestId::of(&Digest::of(b"a")));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IngestId(String);

impl IngestId {
    /// Parses an id from untrusted text.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if text.is_empty() || text.len() > 128 || text.starts_with('.') || !text.bytes().all(allowed) {
            return Err(Error::BadName {
                name: text.chars().take(160).collect(),
                what: "an ingest id",
                reason: "expected 1 to 128 characters of A-Z a-z 0-9 . _ - not beginning with a dot",
            });
        }
        Ok(Self(text.to_owned()))
    }

    /// The id of every ingest of the blob `digest`, so that two transfers of one blob share one
    /// ingest.
    pub fn of(digest: &Digest) -> Self {
        // The longest id has 128 hex digits. The length of the id implies the algorithm.
        Self(digest.hex())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for IngestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for IngestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Facts about the bytes that a writer knows in advance. The size is enforced at each write; both
/// digest and size are checked at the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Neither digest nor size. The blob gets the SHA-256 digest of the bytes.
    Unknown,
    /// The length in bytes.
    Size(u64),
    /// The digest.
    Digest(Digest),
    /// Digest and length.
    Blob {
        /// The digest.
        digest: Digest,
        /// The length in bytes.
        size: u64,
    },
}

impl Expected {
    /// The digest, if it is known.
    pub fn digest(&self) -> Option<Digest> {
        match *self {
            Self::Digest(digest) | Self::Blob { digest, .. } => Some(digest),
            Self::Unknown | Self::Size(_) => None,
        }
    }

    /// The length in bytes, if it is known.
    pub fn size(&self) -> Option<u64> {
        match *self {
            Self::Size(size) | Self::Blob { size, .. } => Some(size),
            Self::Unknown | Self::Digest(_) => None,
        }
    }

    /// Checks the digest and size of the received bytes against the expected ones.
    pub fn check(&self, digest: Digest, size: u64) -> Result<(), Error> {
        if let Some(expected) = self.size().filter(|expected| *expected != size) {
            return Err(Error::WrongSize { expected, actual: size });
        }
        if let Some(expected) = self.digest().filter(|expected| *expected != digest) {
            return Err(Error::WrongDigest { expected, actual: digest });
        }
        Ok(())
    }
}

/// A source of blobs, local or remote.
pub trait Provider: Send + Sync {
    /// Describes a blob, or returns `None` if the source does not have it. The media type is
    /// [`MediaType::OCTET_STREAM`](crate::MediaType::OCTET_STREAM), because only manifests say what
    /// a blob contains.
    fn stat(&self, digest: &Digest) -> impl Future<Output = Result<Option<Descriptor>, Error>> + Send;

    /// Reads a range of the blob. The range is cut at the end of the blob; a range that starts
    /// beyond the end is empty. The bytes are not verified: a caller that reads the whole blob must
    /// hash it.
    ///
    /// The result is in memory, so read a few MiB at a time.
    ///
    /// # Errors
    /// [`Error::BlobNotFound`] if the source does not have the blob; [`Error::Io`],
    /// [`Error::Remote`] or [`Error::Other`] if it cannot be read.
    fn read(&self, blob: &Descriptor, range: Range<u64>) -> impl Future<Output = Result<Bytes, Error>> + Send;
}

/// A target for bytes. They become visible all at once, under their digest.
pub trait Ingester: Send + Sync {
    /// The type of an ingest in progress.
    type Ingest: Ingest;

    /// Starts or resumes the ingest `id`. Fails with [`Error::Busy`] while another writer holds it.
    fn ingest(&self, id: &IngestId, expected: Expected) -> impl Future<Output = Result<Self::Ingest, Error>> + Send;
}

/// A blob that is being written. [`Ingester::ingest`] resumes it after [`Ingest::pause`]. Dropping
/// it keeps at least the bytes up to the last pause.
pub trait Ingest: Send {
    /// Number of bytes that are already written. A resumed transfer continues there.
    fn offset(&self) -> u64;

    /// Appends `bytes`. Fails with [`Error::WrongSize`] beyond the expected size.
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = Result<(), Error>> + Send;

    /// Tells the store that `bytes` more bytes are likely to follow before the next pause or
    /// commit. A store that sends bytes in parts can then make the last one small.
    fn plan_for(&mut self, _bytes: u64) {}

    /// Replaces the expected digest and size after the ingest was started. The commit checks them.
    fn expect(&mut self, expected: Expected) -> impl Future<Output = Result<(), Error>> + Send;

    /// Ends the work on the ingest for now. A store that writes each byte at once returns the
    /// ingest, which may stay open. A store that collects bytes in memory saves them and returns
    /// `None`; any process can then resume the ingest.
    fn pause(self) -> impl Future<Output = Result<Option<Self>, Error>> + Send
    where
        Self: Sized,
    {
        async { Ok(Some(self)) }
    }

    /// Checks size and digest and makes the blob visible. The blob is durable when this returns. If
    /// the check fails, the bytes are discarded and the next attempt starts at zero. If the blob
    /// exists already, it stays and the commit succeeds.
    fn commit(self) -> impl Future<Output = Result<(Digest, u64), Error>> + Send;

    /// Discards the bytes.
    fn cancel(self) -> impl Future<Output = Result<(), Error>> + Send;
}
