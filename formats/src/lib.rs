//! Tensor files: safetensors and GGUF, the geometry of GGML blocks, and hyper-parameters.
//!
//! Parsers here take bytes, most often mapped ones, and return facts. They never read beyond what they were given,
//! never allocate from a count before holding it against the bytes that remain, never panic on foreign bytes, and say
//! what is wrong at which offset.

pub mod dtype;
pub mod error;
pub mod ggml;
pub mod gguf;
pub mod hyper;
pub mod safetensors;

pub use dtype::Dtype;
pub use error::Error;
pub use ggml::GgmlType;
pub use gguf::Gguf;
pub use hyper::HyperParameters;

// Offsets into mapped files are held in `usize`.
const _: () = assert!(size_of::<usize>() == 8);
