//! Errors of this crate. Their class says how a caller can react.

use content::operation::{Classified, ErrorClass};

/// Reasons why a tensor cannot be inspected although nothing is damaged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model has no such tensor.
    #[error("`{model}` has no tensor `{tensor}`; `lode show {model} --tensors` lists those that it has")]
    NoTensor {
        /// Name of the model.
        model: String,
        /// The requested tensor.
        tensor: String,
    },
    /// The values of the tensor cannot be decoded.
    #[error(
        "the numbers of tensor `{tensor}` cannot be read: there is no decoder of {encoding}; `lode export` writes its bytes as they are"
    )]
    NoNumbers {
        /// Name of the tensor.
        tensor: String,
        /// Encoding of the tensor.
        encoding: String,
    },
}

impl Classified for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NoTensor { .. } => ErrorClass::NotFound,
            Self::NoNumbers { .. } => ErrorClass::Invalid,
        }
    }
}
