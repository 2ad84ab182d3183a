//! Tensor files: safetensors and GGUF, and the encodings of weights. This crate does not depend on
//! model architectures.
//!
//! The parsers take bytes, usually memory-mapped, and return facts. They never read out of bounds.
//! They check every count against the remaining bytes before they allocate. They never panic on
//! malformed input, and their errors contain the offset of the problem.

pub mod codec;
pub mod dtype;
pub mod encoding;
pub mod error;
pub mod ggml;
pub mod gguf;
pub mod json;
pub mod safetensors;
pub mod weight;

pub use dtype::Dtype;
pub use encoding::Encoding;
pub use error::Error;
pub use ggml::{Encoder, GgmlType, WeightKernels};
pub use gguf::Gguf;
pub use weight::Weight;

// Offsets into mapped files are stored as `usize`.
const _: () = assert!(size_of::<usize>() == 8);
