//! The Ollama API.
//!
//! Requests ignore unknown fields, as Ollama does. Responses omit empty fields.

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

/// Error body of every endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaError")]
pub struct ErrorResponse {
    /// Human-readable message.
    pub error: String,
}
