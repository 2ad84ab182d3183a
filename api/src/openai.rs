//! `OpenAI`'s API: models, chat, completions, embeddings, responses.
//!
//! Unknown fields are ignored. A known field that asks for an unsupported feature is refused by
//! name, unless it only concerns billing. Lode adds two fields: `options`, with Ollama's options,
//! and `keep_alive`.

pub mod chat;
pub mod completions;
mod content;
mod embeddings;
mod error;
mod format;
mod head;
mod logprobs;
mod models;
pub mod responses;
mod sampling;
mod tools;
mod usage;

pub use embeddings::{EmbeddingsRequest, EmbeddingsResponse, Encoding};
pub use error::{ErrorObject, ErrorResponse};
pub use head::Head;
pub use models::{Model, ModelList};
pub use usage::Usage;
