//! What can go wrong in a store.

use std::io;
use std::path::{Path, PathBuf};

use content::Digest;

/// Why a store could not do something. Variants by what a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bytes, names or ids that were not acceptable; the same as of any content store.
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
    /// A newer program has made the store.
    #[error(
        "the store `{}` has the format version {found}, this program reads {known} at most; use the newer version of Lode \
         that made it, or another folder (`LODE_HOME`)",
        home.display()
    )]
    Newer {
        /// The folder of the store.
        home: PathBuf,
        /// What it says.
        found: u32,
        /// What can be read.
        known: u32,
    },
    /// The system refused an operation.
    #[error("cannot {operation} `{}`: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the store is not as it was written.
    #[error("`{}` is damaged: {reason}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A manifest cannot be read, and it is not known what it refers to.
    #[error(
        "manifest `{digest}` cannot be read, so what it refers to is not known: {reason}; run `lode repair`, or remove the names that it has"
    )]
    Unreadable {
        /// Which manifest.
        digest: Digest,
        /// What is wrong with it.
        reason: String,
    },
    /// The index cannot be made.
    #[error("the index cannot be made: {0}; everything works without it, only slower")]
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
