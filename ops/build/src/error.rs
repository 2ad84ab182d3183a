//! What callers act on: it is found in the chain of an error by its type.

/// Why a model cannot be made or given, where whoever asked is to blame.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An archive that cannot be loaded.
    #[error("the archive cannot be loaded: {0}")]
    BadArchive(String),
    /// An archive with a malformed member.
    #[error(transparent)]
    Malformed(#[from] archive::Error),
    /// What was asked for cannot be exported.
    #[error("{0}")]
    CannotExport(String),
}
