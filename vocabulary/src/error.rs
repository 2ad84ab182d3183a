//! The error for vocabularies that cannot be read.

/// A document whose vocabulary is inconsistent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the vocabulary: {0}")]
pub struct Error(pub(crate) String);
