//! Errors of importing a model.

use std::fmt::Display;
use std::io;

use content::Digest;
use content::operation::{Classified, ErrorClass};

/// Error of a source that cannot become a model, or of a target that refuses it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is malformed or not of the expected format.
    #[error("`{name}`: {source}")]
    Format {
        /// Path or URL of the file.
        name: String,
        /// Error of the parser.
        source: formats::Error,
    },
    /// The system failed to read a file.
    #[error("cannot {operation} `{name}`: {source}")]
    Io {
        /// Failed operation, as a verb.
        operation: &'static str,
        /// Path or URL of the file.
        name: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The files are readable but do not form a model.
    #[error("{0}")]
    Source(String),
    /// The store refused a blob.
    #[error("cannot store `{name}`: {source}")]
    Target {
        /// Name of the layer.
        name: String,
        /// Error of the store.
        source: content::Error,
    },
    /// The bytes of a blob do not match its digest.
    #[error("blob `{blob}` is damaged: {reason}; run `lode repair MODEL`")]
    Damaged {
        /// Digest of the blob.
        blob: Digest,
        /// Description of the mismatch.
        reason: String,
    },
    /// A file differs from the original although all of its blobs match their digests.
    #[error("`{name}` hashes to `{found}`, it was `{expected}` before; import or pull the model again")]
    Changed {
        /// Name of the file in the model.
        name: String,
        /// Digest of the original.
        expected: Digest,
        /// Digest that was found.
        found: Digest,
    },
    /// The caller cancelled the import.
    #[error("the import was cancelled; tensors that were complete stay in the store until the next collection")]
    Cancelled,
}

impl Error {
    /// Creates an [`Error::Io`] from the operation, as a verb, and the name of the file.
    pub fn io(operation: &'static str, name: impl Display, source: io::Error) -> Self {
        Self::Io { operation, name: name.to_string(), source }
    }

    /// Creates an [`Error::Target`] from the name of the layer.
    pub(crate) fn target(name: &str, source: content::Error) -> Self {
        Self::Target { name: name.to_owned(), source }
    }

    /// Creates an [`Error::Format`] from the name of the file.
    pub fn format(name: impl Display, source: formats::Error) -> Self {
        Self::Format { name: name.to_string(), source }
    }
}

impl Classified for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Format { .. } | Self::Source(_) => ErrorClass::Invalid,
            Self::Io { source, .. } => match source.class() {
                // The file was named by the caller, and the system cannot read it.
                ErrorClass::Internal if source.kind() != io::ErrorKind::Other => ErrorClass::Invalid,
                class => class,
            },
            Self::Target { source, .. } => source.class(),
            Self::Damaged { .. } | Self::Changed { .. } | Self::Cancelled => ErrorClass::Internal,
        }
    }
}
