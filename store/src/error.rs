//! Errors of a store.

use std::io;
use std::path::{Path, PathBuf};

use content::Digest;
use content::operation::{Classified, ErrorClass};

/// Reasons why a store operation failed. The variants differ in how the caller can react.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bytes, names or ids are not acceptable, as in any content store.
    #[error(transparent)]
    Content(#[from] content::Error),
    /// Another process has the store open.
    #[error("the store `{}` is in use by process {holder}; stop that first (`lode serve` runs one store only once)", home.display())]
    Locked {
        /// The folder of the store.
        home: PathBuf,
        /// Its process id, or `unknown`.
        holder: String,
    },
    /// A newer version of Lode made the store.
    #[error(
        "the store `{}` has the format version {found}, this program reads {known} at most; use the newer version of Lode \
         that made it, or another folder (`LODE_HOME`)",
        home.display()
    )]
    Newer {
        /// The folder of the store.
        home: PathBuf,
        /// The format version of the store.
        found: u32,
        /// The newest format version that this program reads.
        known: u32,
    },
    /// An I/O operation failed.
    #[error("cannot {operation} `{}`: {source}", path.display())]
    Io {
        /// The operation that failed, as a verb.
        operation: &'static str,
        /// The file or folder of the operation.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file of the store differs from how it was written.
    #[error("`{}` is damaged: {reason}", path.display())]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// A manifest cannot be read, so its references are unknown.
    #[error(
        "manifest `{digest}` cannot be read, so its references are unknown: {reason}; run `lode repair`, or remove its tags"
    )]
    Unreadable {
        /// The manifest.
        digest: Digest,
        /// The defect.
        reason: String,
    },
    /// A tier belongs to another store.
    #[error("the tier `{tier}` belongs to another store, `{owner}`; give each store a tier of its own")]
    OtherTier {
        /// Where the tier is.
        tier: String,
        /// The id of its store.
        owner: String,
    },
    /// The index cannot be created.
    #[error("the index cannot be created: {0}; the store works without it, only slower")]
    Index(String),
}

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { operation, path: path.to_owned(), source: source.into() }
    }
}

impl From<Error> for content::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Content(error) => error,
            Error::Io { operation, path, source } => Self::Io { operation, path, source },
            other => Self::Other(Box::new(other)),
        }
    }
}

impl Classified for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Content(error) => error.class(),
            Self::Io { source, .. } => source.class(),
            Self::OtherTier { .. } => ErrorClass::Invalid,
            Self::Locked { .. }
            | Self::Newer { .. }
            | Self::Damaged { .. }
            | Self::Unreadable { .. }
            | Self::Index(_) => ErrorClass::Internal,
        }
    }
}
