//! Errors of describing a model.

/// Error of describing a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No family supports the architecture.
    #[error("architecture `{name}` cannot be run yet{lacks}; supported: {supported}")]
    Unknown {
        /// Name of the architecture in the source, truncated.
        name: String,
        /// Missing feature, in parentheses; empty if unknown.
        lacks: String,
        /// List of supported architectures.
        supported: String,
    },
    /// A document contradicts itself, or has a value that is not supported.
    #[error("{document}: {reason}")]
    Document {
        /// Name of the document.
        document: &'static str,
        /// Description of the invalid and the expected value.
        reason: String,
    },
}

impl Error {
    pub(crate) fn new(document: &'static str, reason: impl Into<String>) -> Self {
        Self::Document { document, reason: reason.into() }
    }
}
