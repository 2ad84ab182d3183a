//! Why a vocabulary cannot be read.

/// A GGUF file whose vocabulary contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("GGUF metadata: {0}")]
pub struct Error(pub(crate) String);
