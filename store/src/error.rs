//! Errors of a store.

use std::io;
use std::path::{Path, PathBuf};

use content::Digest;
use content::operation::{Classified, ErrorClass, RemoteClass};

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
    /// Only the tier has a blob, and no tier is attached.
    #[error(
        "blob `{blob}` is in the tier `{location}`, which is not attached; start the daemon with `LODE_TIER={location}`, \
         and with a store that it may write"
    )]
    NoTier {
        /// The blob.
        blob: Digest,
        /// Where the tier is.
        location: String,
    },
    /// A blob cannot be copied back from the tier.
    #[error("blob `{blob}` cannot be read from the tier `{location}`: {source}")]
    Recall {
        /// The blob.
        blob: Digest,
        /// Where the tier is.
        location: String,
        /// The failure.
        source: content::Error,
    },
    /// Blobs are in another tier than the one to attach.
    #[error(
        "blobs of this store are only in its tier `{known}`, so `{new}` cannot replace it; start with \
         `LODE_TIER={known}` and run `lode tier recall --all` first, or, if the tier has moved, write its new place into \
         `tier/location` in the store's folder"
    )]
    TierMoved {
        /// Where the blobs are.
        known: String,
        /// The tier to attach.
        new: String,
    },
    /// A file in which blobs lie no longer has their bytes.
    #[error(
        "`{}`, in which tensors of an adopted model lie, cannot be used: {reason}; put it back as it was, or adopt it again \
         (`lode adopt`); a model of a registry can be fetched as well (`lode repair`, `lode pull`)",
        path.display()
    )]
    SourceLost {
        /// The file.
        path: PathBuf,
        /// The change.
        reason: String,
    },
    /// A folder cannot be a root of the store.
    #[error("`{}` cannot be a root (LODE_ROOTS): {reason}", path.display())]
    NoRoot {
        /// The folder.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A tag is in a root, which is never changed.
    #[error(
        "`{name}` is in the root `{}`, which is only read; change it with a daemon whose LODE_HOME that is",
        root.display()
    )]
    InRoot {
        /// `host/repository:tag`.
        name: String,
        /// The folder of the root.
        root: PathBuf,
    },
    /// Blobs cannot lie in a file.
    #[error("`{}` cannot be used in place: {reason}", path.display())]
    CannotRefer {
        /// The file.
        path: PathBuf,
        /// Why not, and a way out.
        reason: String,
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
            Error::Recall { blob, location, source } => match source.class() {
                ErrorClass::Remote(class) => {
                    Self::Remote { class, source: Box::new(Error::Recall { blob, location, source }) }
                }
                _ => Self::Other(Box::new(Error::Recall { blob, location, source })),
            },
            other => Self::Other(Box::new(other)),
        }
    }
}

impl Classified for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Content(error) => error.class(),
            Self::Io { source, .. } => source.class(),
            Self::Recall { source, .. } => source.class(),
            Self::TierMoved { .. } | Self::CannotRefer { .. } | Self::NoRoot { .. } => ErrorClass::Invalid,
            Self::InRoot { .. } => ErrorClass::Conflict,
            Self::NoTier { .. } => ErrorClass::Remote(RemoteClass::Unreachable),
            Self::Locked { .. }
            | Self::Newer { .. }
            | Self::Damaged { .. }
            | Self::Unreadable { .. }
            | Self::SourceLost { .. }
            | Self::Index(_) => ErrorClass::Internal,
        }
    }
}
