//! Errors of documents and names.

use content::operation::{Classified, ErrorClass};

/// Reasons why a document or a name is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A model name is malformed.
    #[error("`{name}` is not a model name: {reason}; expected [HOST/][NAMESPACE/]NAME[:TAG][@DIGEST]")]
    Reference {
        /// The rule that the name breaks.
        name: String,
        /// Which rule it breaks.
        reason: String,
    },
    /// The document is not JSON, or is JSON of another shape.
    #[error("{what} cannot be read: {reason}")]
    Malformed {
        /// The kind of document.
        what: &'static str,
        /// The defect and its place.
        reason: String,
    },
    /// The document is longer than registries accept.
    #[error(
        "{what} has {size} bytes, {limit} at most are allowed; a model with so many tensors cannot be one manifest yet"
    )]
    TooLarge {
        /// The kind of document.
        what: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

impl Error {
    pub(crate) fn malformed(what: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::Malformed { what, reason: reason.to_string() }
    }
}

/// Documents and names come from outside.
impl Classified for Error {
    fn class(&self) -> ErrorClass {
        ErrorClass::Invalid
    }
}
