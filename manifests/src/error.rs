//! What can be wrong with a document or a name.

/// Why a document or a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A name people typed.
    #[error("`{name}` is not a model name: {reason}; expected [HOST/][NAMESPACE/]NAME[:TAG][@DIGEST]")]
    Reference {
        /// The name, cut where it is long.
        name: String,
        /// Which rule it breaks.
        reason: String,
    },
    /// Not JSON, or JSON of another shape.
    #[error("{what} cannot be read: {reason}")]
    Malformed {
        /// Which document.
        what: &'static str,
        /// What is wrong, and where.
        reason: String,
    },
    /// Longer than a registry would take.
    #[error(
        "{what} has {size} bytes, {limit} at most are allowed; a model with so many tensors cannot be one manifest yet"
    )]
    TooLarge {
        /// Which document.
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
