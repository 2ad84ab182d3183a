//! Errors that callers handle. Callers find them by type in the chain of an error.

/// An error caused by the request: a model cannot be made or exported as requested.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An archive that cannot be loaded.
    #[error("the archive cannot be loaded: {0}")]
    BadArchive(String),
    /// An archive with a malformed member.
    #[error(transparent)]
    Malformed(#[from] archive::Error),
    /// The model cannot be exported as requested.
    #[error("{0}")]
    CannotExport(String),
}
