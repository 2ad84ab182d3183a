//! The response document. It is the body of a plain response, and part of the first and last events
//! of a stream.

use schemars::JsonSchema;
use serde::Serialize;

use super::Echo;
use crate::openai::logprobs::TokenLogprob;

/// Response of `POST /v1/responses`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
pub struct Response {
    pub id: String,
    pub object: &'static str,
    /// Creation time in seconds since 1970.
    pub created_at: u64,
    pub status: Status,
    pub background: bool,
    pub error: Option<ResponseError>,
    pub incomplete_details: Option<Incomplete>,
    pub model: String,
    pub output: Vec<Item>,
    pub previous_response_id: Option<String>,
    /// Always false: responses are not stored.
    pub store: bool,
    #[serde(flatten)]
    pub echo: Echo,
    pub usage: Option<Usage>,
}

impl Response {
    /// Creates a response without output. `id` is a random string.
    pub fn new(id: &str, created_at: u64, model: String, echo: Echo) -> Self {
        Self {
            id: format!("resp_{id}"),
            object: "response",
            created_at,
            status: Status::InProgress,
            background: false,
            error: None,
            incomplete_details: None,
            model,
            output: Vec::new(),
            previous_response_id: None,
            store: false,
            echo,
            usage: None,
        }
    }
}

/// Status of a response or an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseStatus")]
pub enum Status {
    /// Generation continues.
    InProgress,
    /// The generation ended normally.
    Completed,
    /// The generation reached the token limit.
    Incomplete,
    /// The generation failed.
    Failed,
}

/// The reason why a response failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResponseError {
    /// Machine-readable error code.
    pub code: &'static str,
    /// Human-readable message.
    pub message: String,
}

/// The reason why a response is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ResponseIncomplete")]
pub struct Incomplete {
    /// Machine-readable reason.
    pub reason: &'static str,
}

/// An item of the output.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseItem")]
pub enum Item {
    /// Reasoning of the model.
    Reasoning { id: String, summary: Vec<Part>, content: Vec<Part>, status: Status },
    /// A message of the model.
    Message { id: String, role: &'static str, content: Vec<Part>, status: Status },
    /// A function call; `arguments` is serialized JSON.
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        arguments: String,
        status: Status,
    },
}

/// A content part of an item.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponsePart")]
pub enum Part {
    /// Text of the reasoning.
    ReasoningText { text: String },
    /// Text of a message. There are never annotations.
    OutputText { text: String, annotations: [(); 0], logprobs: Vec<TokenLogprob> },
}

/// Token usage of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ResponseUsage")]
pub struct Usage {
    pub input_tokens: u64,
    pub input_tokens_details: InputTokens,
    pub output_tokens: u64,
    pub output_tokens_details: OutputTokens,
    pub total_tokens: u64,
}

/// Details of the input tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InputTokens {
    /// Prompt tokens found in the KV cache.
    pub cached_tokens: u64,
    /// Lode extension: prompt tokens that were dropped because the prompt did not fit the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_tokens: Option<u64>,
}

/// Details of the output tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OutputTokens {
    /// Tokens of the reasoning, counted as streamed text pieces. A piece is one token, or several
    /// if they form one character.
    pub reasoning_tokens: u64,
}

impl Usage {
    /// Creates the usage of a generation with this number of reasoning tokens.
    pub(super) fn new(usage: protocol::Usage, reasoning_tokens: u64) -> Self {
        let truncated_tokens = Some(usage.truncated_tokens).filter(|count| *count > 0);
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokens { cached_tokens: usage.cached_tokens, truncated_tokens },
            output_tokens: usage.tokens,
            output_tokens_details: OutputTokens { reasoning_tokens },
            total_tokens: usage.prompt_tokens + usage.tokens,
        }
    }
}
