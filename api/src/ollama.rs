//! The Ollama API.
//!
//! Requests ignore fields they do not know, as the original does. Responses leave out fields that are empty.

mod answer;
mod cloud;
mod create;
mod embed;
mod generate;
mod keep_alive;
mod lines;
mod models;
mod null;
mod options;
mod think;
mod tokenize;
mod transfer;

pub use answer::{
    AnswerMessage, ChatResponse, DebugInfo, FunctionCall, GenerateResponse, Metrics, TokenLogprob, ToolCall,
};
pub use cloud::{CloudStatus, StatusResponse};
pub use create::{CreateRequest, License, Progress};
pub use embed::{EmbedRequest, EmbedResponse, EmbeddingsRequest, EmbeddingsResponse};
pub use generate::{ChatRequest, GenerateRequest, demand};
pub use keep_alive::KeepAliveSpec;
pub use lines::{AnswerLines, Endpoint, Line, Moment};
pub use models::{
    CopyRequest, DeleteRequest, Details, ModelEntry, PsEntry, PsResponse, ShowRequest, ShowResponse, TagsResponse,
    TensorEntry, VersionResponse,
};
pub use options::Options;
pub use think::Think;
pub use tokenize::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse};
pub use transfer::{PullRequest, PushLine, PushRequest};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An error, as every endpoint tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaError")]
pub struct ErrorResponse {
    /// For people.
    pub error: String,
}
