//! Why a model cannot be described.

/// Why a model cannot be described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No family reads it.
    #[error("architecture `{name}` cannot be run yet{lacks}; supported: {supported}")]
    Unknown {
        /// As the source names it, shortened.
        name: String,
        /// What is missing for it, in brackets; empty where nobody has looked.
        lacks: String,
        /// What could be run.
        supported: String,
    },
    /// A document contradicts itself, or says something that cannot be computed.
    #[error("{document}: {reason}")]
    Document {
        /// Which.
        document: &'static str,
        /// What is wrong, what was expected.
        reason: String,
    },
}

impl Error {
    pub(crate) fn new(document: &'static str, reason: impl Into<String>) -> Self {
        Self::Document { document, reason: reason.into() }
    }
}
