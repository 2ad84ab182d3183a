//! Why a model could not be imported.

use std::fmt::Display;
use std::io;

use content::Digest;

/// A source that cannot become a model, or a target that did not take it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that is not what its name says.
    #[error("`{name}`: {source}")]
    Format {
        /// Which file: a path or a URL.
        name: String,
        /// What is wrong with it.
        source: formats::Error,
    },
    /// The system refused to read a file.
    #[error("cannot {operation} `{name}`: {source}")]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On which file: a path or a URL.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The files are readable but do not make a model.
    #[error("{0}")]
    Source(String),
    /// The store did not take a blob.
    #[error("cannot store `{name}`: {source}")]
    Target {
        /// Which layer.
        name: String,
        /// What the store said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A blob is not what its digest says.
    #[error("blob `{blob}` is damaged: {reason}; run `lode repair MODEL`")]
    Damaged {
        /// Which.
        blob: Digest,
        /// What is wrong with it.
        reason: String,
    },
    /// A file is not what it was, though every blob is what its digest says.
    #[error("`{name}` hashes to `{found}`, it was `{expected}` before; import or pull the model again")]
    Changed {
        /// Which file of the model.
        name: String,
        /// What it was.
        expected: Digest,
        /// What it is.
        found: Digest,
    },
    /// Whoever asked for the import went away.
    #[error("the import was cancelled; tensors that were complete stay in the store until the next collection")]
    Cancelled,
}

impl Error {
    /// The system refused to read a file: what was tried, as a verb, and on which file.
    pub fn io(operation: &'static str, name: impl Display, source: io::Error) -> Self {
        Self::Io { operation, name: name.to_string(), source }
    }

    /// A file that is not what its name says.
    pub fn format(name: impl Display, source: formats::Error) -> Self {
        Self::Format { name: name.to_string(), source }
    }
}
