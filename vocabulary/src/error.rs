//! Why a vocabulary cannot be read.

/// A document whose vocabulary contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the vocabulary: {0}")]
pub struct Error(pub(crate) String);
