//! What callers act on: it is found in the chain of an error by its type, whatever was said around it.

/// Why something cannot be looked at, where that is nobody's damage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model has no such tensor.
    #[error("`{model}` has no tensor `{tensor}`; `lode show {model} --tensors` lists those that it has")]
    NoTensor {
        /// The model's name.
        model: String,
        /// What was asked for.
        tensor: String,
    },
    /// Its numbers cannot be read.
    #[error(
        "the numbers of tensor `{tensor}` cannot be read: there is no decoder of {encoding}; `lode export` gives its bytes to who has one"
    )]
    NoNumbers {
        /// Its name.
        tensor: String,
        /// How they are written.
        encoding: String,
    },
}
