//! Tensor files: safetensors and GGUF, and how weights are encoded. Nothing here knows an architecture.
//!
//! Parsers here take bytes, most often mapped ones, and return facts. They never read beyond what they were given,
//! never allocate from a count before holding it against the bytes that remain, never panic on foreign bytes, and say
//! what is wrong at which offset.

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
pub use ggml::GgmlType;
pub use gguf::Gguf;
pub use weight::Weight;

// Offsets into mapped files are held in `usize`.
const _: () = assert!(size_of::<usize>() == 8);
