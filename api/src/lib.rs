//! The HTTP APIs: their requests and responses, and the conversion to the runner protocol.
//!
//! Everything here is pure. A request becomes a [`ChatInput`] and a [`GenerationOptions`]; events
//! of a runner become documents or [`Frame`]s. The caller supplies ids and times.

mod answer;
pub mod anthropic;
mod frame;
mod generation_options;
mod grammar;
pub mod llama_server;
pub mod lm_studio;
pub mod lode;
pub mod modelfile;
mod nearest;
pub mod ollama;
pub mod openai;
mod pictures;
mod refusal;
pub mod rerank;
mod shapes;

pub use answer::{CollectedAnswer, ToolCall};
pub use frame::Frame;
pub use generation_options::{ChatInput, GenerationOptions};
pub use nearest::nearest;
pub use pictures::{is_remote as is_remote_picture, not_fetched as picture_not_fetched};
pub use refusal::Refusal;
