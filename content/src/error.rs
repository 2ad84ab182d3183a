//! Errors of providers, ingesters and taggers.

use std::path::PathBuf;

use crate::Digest;
use crate::operation::{Classified, ErrorClass, RemoteClass};

/// Errors of a content store. The variants differ in how the caller can react.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store has no blob with this digest; try another source.
    #[error("blob `{0}` is not in the store")]
    BlobNotFound(Digest),
    /// The store has no such tag.
    #[error("tag `{0}` is not in the store")]
    TagNotFound(String),
    /// The tag names another manifest and may not be moved.
    #[error("tag `{tag}` names `{digest}` and may not be moved; choose another tag")]
    TagExists {
        /// The tag.
        tag: String,
        /// The manifest that it names.
        digest: Digest,
    },
    /// Another writer holds the ingest; wait, or choose another id.
    #[error("ingest `{0}` has another writer; retry when that has finished")]
    Busy(String),
    /// The bytes have another digest than expected; fetch them again, if possible from another
    /// source.
    #[error("blob `{expected}` has the wrong digest `{actual}`; the bytes were discarded, fetch it again")]
    WrongDigest {
        /// The expected digest.
        expected: Digest,
        /// The digest of the received bytes.
        actual: Digest,
    },
    /// The number of bytes differs from the expected size.
    #[error("the blob has {actual} bytes, expected {expected}; the bytes were discarded, fetch it again")]
    WrongSize {
        /// The expected size in bytes.
        expected: u64,
        /// The received size in bytes. It is a lower bound if the writer stopped early.
        actual: u64,
    },
    /// Indexes are nested too deeply.
    #[error(
        "index `{digest}` would make {levels} or more levels of indexes, at most {most} are allowed; name its manifests directly"
    )]
    TooDeep {
        /// The index.
        digest: Digest,
        /// Number of levels that the index would make.
        levels: usize,
        /// Maximum number of levels.
        most: usize,
    },
    /// A name that no store accepts.
    #[error("`{name}` cannot be used as {what}: {reason}")]
    BadName {
        /// The offending name.
        name: String,
        /// The kind of thing that has this name.
        what: &'static str,
        /// The rule that the name breaks.
        reason: &'static str,
    },
    /// The store is readable but not writable.
    #[error(
        "the store `{}` cannot be written: its file system is read-only, or it is another user's; what is in it can be listed, run and \
         pulled, and `LODE_HOME` chooses another store",
        home.display()
    )]
    ReadOnly {
        /// The folder of the store.
        home: PathBuf,
    },
    /// An I/O operation failed, most often because the disk is full.
    #[error("{operation} `{}`: {source}", path.display())]
    Io {
        /// The operation that failed, as a verb.
        operation: &'static str,
        /// The file or folder of the operation.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A registry that is the source of a blob failed.
    #[error("{source}")]
    Remote {
        /// Why it failed.
        class: RemoteClass,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An error that is specific to one kind of store.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// True if the disk or the quota is full. Neither the received bytes nor the disk are damaged.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_full(source))
    }
}

impl Classified for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Busy(_) | Self::TagExists { .. } => ErrorClass::Conflict,
            Self::ReadOnly { .. } => ErrorClass::ReadOnly,
            Self::Io { source, .. } => source.class(),
            Self::Remote { class, .. } => ErrorClass::Remote(*class),
            Self::BlobNotFound(_)
            | Self::TagNotFound(_)
            | Self::WrongDigest { .. }
            | Self::WrongSize { .. }
            | Self::TooDeep { .. }
            | Self::BadName { .. }
            | Self::Other(_) => ErrorClass::Internal,
        }
    }
}

impl Classified for std::io::Error {
    fn class(&self) -> ErrorClass {
        if is_full(self) {
            return ErrorClass::DiskFull;
        }
        // Readers of blobs report errors of a store as I/O errors.
        let inner = self.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        inner.map_or(ErrorClass::Internal, Classified::class)
    }
}

/// True if the disk is full or the user's quota is exhausted.
pub fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}
