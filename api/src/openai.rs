//! `OpenAI`'s API: models, chat, completions, embeddings, responses.
//!
//! Requests ignore fields they do not know. What a field asks for and cannot be had is refused by name, unless ignoring it
//! changes nothing but who is billed. Two fields are Lode's own: `options`, with Ollama's options, and `keep_alive`.

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
