//! The Ollama API.
//!
//! Requests ignore fields they do not know, as the original does. Responses leave out fields that are empty.

mod create;
mod generate;
mod keep_alive;
mod models;
mod options;
mod transfer;

pub use create::{CreateRequest, License, Progress};
pub use generate::{ChatRequest, ChatResponse, GenerateRequest, GenerateResponse, Metrics, Think, TokenLogprob};
pub use keep_alive::KeepAliveSpec;
pub use models::{
    CopyRequest, DeleteRequest, Details, ModelEntry, PsEntry, PsResponse, ShowRequest, ShowResponse, TagsResponse,
    TensorEntry, VersionResponse,
};
pub use options::Options;
pub use transfer::{PullRequest, PushLine, PushRequest};

use serde::{Deserialize, Serialize};

/// An error, as every endpoint tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorResponse {
    /// For people.
    pub error: String,
}
