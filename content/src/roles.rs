//! The roles of a content store.
//!
//! A store is a sum of small roles: it gives blobs ([`Provider`]), takes them ([`Ingester`]) and names them
//! ([`Tagger`]). The store in memory, the store on disk and a registry at the other end of a connection play the same
//! ones, and `testsuite` (feature `testsuite`) holds them to the same promises. What only some can do — paths, maps,
//! deletion — stays on the concrete type.
//!
//! # The life of a blob
//! ```text
//! ingest(id) ──write──▶ … ──write──▶ commit ──▶ blob, readable by digest
//!      ▲                  │
//!      └── later, resumed ┘ dropped: the bytes so far stay under the id, invisible
//! ```

use std::fmt;
use std::future::Future;
use std::ops::Range;

use bytes::Bytes;

use crate::{Digest, Error};

/// The name of an ingest: 1 to 128 characters of `A-Z a-z 0-9 . _ -`, not beginning with a dot.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IngestId(String);

impl IngestId {
    /// Reads an id from outside.
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

    /// The id under which everybody ingests the blob `digest`, so that two transfers of it meet.
    pub fn of(digest: &Digest) -> Self {
        // 128 hex digits are the longest; the algorithm follows from the length.
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

/// What a writer knows of the bytes beforehand. What is known is enforced at the commit, the size already while writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing: the digest is what the bytes hash to with SHA-256.
    Unknown,
    /// The length in bytes.
    Size(u64),
    /// The digest.
    Digest(Digest),
    /// Both.
    Blob {
        /// The digest.
        digest: Digest,
        /// The length in bytes.
        size: u64,
    },
}

impl Expected {
    /// The digest, where it is known.
    pub fn digest(&self) -> Option<Digest> {
        match *self {
            Self::Digest(digest) | Self::Blob { digest, .. } => Some(digest),
            Self::Unknown | Self::Size(_) => None,
        }
    }

    /// The length in bytes, where it is known.
    pub fn size(&self) -> Option<u64> {
        match *self {
            Self::Size(size) | Self::Blob { size, .. } => Some(size),
            Self::Unknown | Self::Digest(_) => None,
        }
    }

    /// Holds the bytes that came against what was known.
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

/// Where blobs can be read.
pub trait Provider: Send + Sync {
    /// The length of the blob in bytes, or `None` where it is not here.
    fn size(&self, digest: &Digest) -> impl Future<Output = Result<Option<u64>, Error>> + Send;

    /// Bytes of the blob. A range beyond its end is cut there; one that starts beyond it is empty.
    ///
    /// Ask for a few MiB at a time: the answer is in memory.
    fn read(&self, digest: &Digest, range: Range<u64>) -> impl Future<Output = Result<Bytes, Error>> + Send;
}

/// Where bytes can be written so that they become visible all at once, under their digest.
pub trait Ingester: Send + Sync {
    /// What is written into.
    type Ingest: Ingest;

    /// Starts or resumes the ingest called `id`. A second holder gets [`Error::Busy`].
    fn ingest(&self, id: &IngestId, expected: Expected) -> impl Future<Output = Result<Self::Ingest, Error>> + Send;
}

/// One blob on its way in. Dropping it keeps what was written for [`Ingester::ingest`] to resume.
pub trait Ingest: Send {
    /// How many bytes are there already: where a resumed transfer goes on.
    fn offset(&self) -> u64;

    /// Appends `bytes`. More than the expected size is refused with [`Error::WrongSize`].
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = Result<(), Error>> + Send;

    /// Says what was learnt of the bytes since the ingest was started; the commit holds them against that.
    fn expect(&mut self, expected: Expected) -> impl Future<Output = Result<(), Error>> + Send;

    /// Checks size and digest and makes the blob visible. It is durable when this returns. Where the check fails the
    /// bytes are thrown away, so that the next attempt starts from nothing. A blob that is there already stays, and
    /// that is no error.
    fn commit(self) -> impl Future<Output = Result<(Digest, u64), Error>> + Send;

    /// Throws the bytes away.
    fn cancel(self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Where blobs get names that people use. A tag is replaced whole; a crash leaves the old one or the new one.
pub trait Tagger: Send + Sync {
    /// The digest that `tag` names.
    fn resolve(&self, tag: &str) -> impl Future<Output = Result<Option<Digest>, Error>> + Send;

    /// Makes `tag` name `digest`, which must be here.
    fn tag(&self, tag: &str, digest: &Digest) -> impl Future<Output = Result<(), Error>> + Send;

    /// Removes `tag`; says whether it was there. Blobs stay.
    fn untag(&self, tag: &str) -> impl Future<Output = Result<bool, Error>> + Send;
}
