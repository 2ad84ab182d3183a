//! Tensor files: safetensors and GGUF; how weights are encoded; and hyper-parameters.
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
pub mod hyper;
pub mod safetensors;
pub mod weight;

pub use dtype::Dtype;
pub use encoding::Encoding;
pub use error::Error;
pub use ggml::GgmlType;
pub use gguf::Gguf;
pub use hyper::HyperParameters;
pub use weight::Weight;

// Offsets into mapped files are held in `usize`.
const _: () = assert!(size_of::<usize>() == 8);
