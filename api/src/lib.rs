//! The HTTP APIs: their documents, and what they mean in terms of the runner protocol.

pub mod lode;
pub mod ollama;
