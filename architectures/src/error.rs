//! Errors of describing a model.

/// Error of describing a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No family supports the architecture.
    #[error("architecture `{name}` cannot be run yet{needs}; `docs/models.md` lists those that can")]
    Unsupported {
        /// Name of the architecture in the source, truncated.
        name: String,
        /// Feature that Lode lacks, with a phrase before it; empty if unknown.
        needs: String,
    },
    /// A document contradicts itself, or has a value that is not supported.
    #[error("{document}: {reason}")]
    Document {
        /// Name of the document.
        document: String,
        /// Description of the invalid and the expected value.
        reason: String,
    },
}

impl Error {
    pub(crate) fn new(document: &str, reason: impl Into<String>) -> Self {
        Self::Document { document: document.to_owned(), reason: reason.into() }
    }

    /// Returns the error with the folder of the document before its name.
    pub(crate) fn in_folder(self, folder: &str) -> Self {
        match self {
            Self::Document { document, reason } => Self::Document { document: format!("{folder}/{document}"), reason },
            unsupported @ Self::Unsupported { .. } => unsupported,
        }
    }
}
