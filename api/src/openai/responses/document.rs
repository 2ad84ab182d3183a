//! The response: a document that is told whole, and again with every event of a stream that begins or ends it.

use schemars::JsonSchema;
use serde::Serialize;

use super::Echo;
use crate::openai::logprobs::TokenLogprob;

/// Answer of `POST /v1/responses`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
pub struct Response {
    pub id: String,
    pub object: &'static str,
    /// Seconds since 1970.
    pub created_at: u64,
    pub status: Status,
    pub background: bool,
    pub error: Option<ResponseError>,
    pub incomplete_details: Option<Incomplete>,
    pub model: String,
    pub output: Vec<Item>,
    pub previous_response_id: Option<String>,
    /// Never: nothing is kept.
    pub store: bool,
    #[serde(flatten)]
    pub echo: Echo,
    pub usage: Option<Usage>,
}

impl Response {
    /// A response that has just begun. `id` is random.
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

/// How far a response or an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseStatus")]
pub enum Status {
    /// More comes.
    InProgress,
    /// It ended by itself.
    Completed,
    /// It ended because the limit of tokens was reached.
    Incomplete,
    /// It broke off.
    Failed,
}

/// Why a response failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResponseError {
    /// For programs.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

/// Why a response is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ResponseIncomplete")]
pub struct Incomplete {
    /// For programs.
    pub reason: &'static str,
}

/// An item of a response.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseItem")]
pub enum Item {
    /// What the model thought.
    Reasoning { id: String, summary: Vec<Part>, content: Vec<Part>, status: Status },
    /// What it says.
    Message { id: String, role: &'static str, content: Vec<Part>, status: Status },
    /// A function that it calls; `arguments` is JSON.
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

/// A part of an item.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponsePart")]
pub enum Part {
    /// Of what the model thought.
    ReasoningText { text: String },
    /// Of what it says. Nothing is annotated here.
    OutputText { text: String, annotations: [(); 0], logprobs: Vec<TokenLogprob> },
}

/// Tokens that a response took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ResponseUsage")]
pub struct Usage {
    pub input_tokens: u64,
    pub input_tokens_details: InputTokens,
    pub output_tokens: u64,
    pub output_tokens_details: OutputTokens,
    pub total_tokens: u64,
}

/// More of the tokens of the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InputTokens {
    /// Found in the KV cache.
    pub cached_tokens: u64,
    /// Lode's own: dropped because they did not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_tokens: Option<u64>,
}

/// More of the tokens of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OutputTokens {
    /// Of what the model thought. Counted in pieces of text, which are tokens unless a character is made of several.
    pub reasoning_tokens: u64,
}

impl Usage {
    /// Of a generation with so many tokens of thinking.
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
