//! Why a model could not be imported.

use std::io;
use std::path::{Path, PathBuf};

/// A source that cannot become a model, or a target that did not take it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that is not what its name says.
    #[error("`{}`: {source}", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: formats::Error,
    },
    /// The system refused to read a file.
    #[error("cannot {operation} `{}`: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
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
    /// Whoever asked for the import went away.
    #[error("the import was cancelled; tensors that were complete stay in the store until the next collection")]
    Cancelled,
}

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), source }
    }

    pub(crate) fn format(path: &Path, source: formats::Error) -> Self {
        Self::Format { path: path.to_owned(), source }
    }
}
