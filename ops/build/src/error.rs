//! Errors of this crate. Their class says how a caller can react.

use content::operation::{Classified, ErrorClass};

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

impl Classified for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Self::BadArchive(_) | Self::Malformed(_) | Self::CannotExport(_) => ErrorClass::Invalid,
        }
    }
}
