//! What can go wrong between a provider and an ingester.

use std::path::PathBuf;

use crate::Digest;

/// Why content could not be had, taken or named. Variants by what a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such blob here; try another source.
    #[error("blob `{0}` is not here")]
    BlobNotFound(Digest),
    /// There is no such tag here.
    #[error("tag `{0}` is not here")]
    TagNotFound(String),
    /// Somebody else holds the ingest; wait or choose another id.
    #[error("ingest `{0}` is being written by somebody else; try again when that is done")]
    Busy(String),
    /// The bytes are not what was promised; fetch them again, from elsewhere if possible.
    #[error("bytes with digest `{actual}` were sent as blob `{expected}`; they were thrown away, fetch it again")]
    WrongDigest {
        /// What was promised.
        expected: Digest,
        /// What came.
        actual: Digest,
    },
    /// There are fewer or more bytes than promised.
    #[error("{actual} bytes were sent, {expected} were announced; they were thrown away, fetch the blob again")]
    WrongSize {
        /// What was promised.
        expected: u64,
        /// What came (at least, where the writer stopped early).
        actual: u64,
    },
    /// Indexes stand in each other too deep.
    #[error(
        "index `{digest}` would make {levels} or more levels of indexes, at most {most} are allowed; name its manifests directly"
    )]
    TooDeep {
        /// The index.
        digest: Digest,
        /// How many there would be.
        levels: usize,
        /// How many there may be.
        most: usize,
    },
    /// A name that no store may take.
    #[error("`{name}` cannot be used as {what}: {reason}")]
    BadName {
        /// The offending name.
        name: String,
        /// What it was to name.
        what: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The store can be read and not written.
    #[error(
        "the store `{}` cannot be written: its file system is read-only, or it is another user's; what is in it can be listed, run and \
         pulled, and `LODE_HOME` chooses another store",
        home.display()
    )]
    ReadOnly {
        /// The folder of the store.
        home: PathBuf,
    },
    /// The medium failed: a disk, most often a full one.
    #[error("{operation} `{}`: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another failure of a particular store, told by its own error.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Whether the disk has no room for it: nothing is wrong with what was sent, nor with the disk.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_full(source))
    }
}

/// Whether a disk, or what a user may have of it, has no room.
pub fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}
