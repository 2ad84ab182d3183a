//! Responses of `/api/generate` and `/api/chat`: a line of a stream or the only document.

use protocol::{Logprob, Usage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Counts and times, in the last line. Durations are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct Metrics {
    pub total_duration: u64,
    pub load_duration: u64,
    pub prompt_eval_count: u64,
    pub prompt_eval_duration: u64,
    pub eval_count: u64,
    pub eval_duration: u64,
    /// Lode extension: prompt tokens found in the KV cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub prompt_cached_count: u64,
    /// Lode extension: prompt tokens that were dropped because the prompt did not fit the context.
    #[serde(skip_serializing_if = "is_zero")]
    pub prompt_truncated_count: u64,
    /// Lode extension: pictures that the tower computed for this prompt; others were known.
    #[serde(skip_serializing_if = "is_zero")]
    pub picture_encoded_count: u64,
    /// Lode extension: time that the tower took, a part of `prompt_eval_duration`.
    #[serde(skip_serializing_if = "is_zero")]
    pub picture_encoded_duration: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(super) fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Metrics {
    /// Creates the metrics of a generation. `total` and `load` are in nanoseconds.
    pub fn new(usage: Usage, total: u64, load: u64) -> Self {
        Self {
            total_duration: total,
            load_duration: load,
            prompt_eval_count: usage.prompt_tokens,
            prompt_eval_duration: usage.prompt_nanos,
            eval_count: usage.tokens,
            eval_duration: usage.nanos,
            prompt_cached_count: usage.cached_tokens,
            prompt_truncated_count: usage.truncated_tokens,
            picture_encoded_count: usage.encoded_pictures,
            picture_encoded_duration: usage.picture_nanos,
        }
    }
}

/// A token and its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct TokenLogprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<TokenLogprob>,
}

impl From<Logprob> for TokenLogprob {
    fn from(logprob: Logprob) -> Self {
        Self {
            bytes: logprob.text.clone().into_bytes(),
            token: logprob.text,
            logprob: logprob.logprob,
            top_logprobs: logprob.top.into_iter().map(Self::from).collect(),
        }
    }
}

/// A tool call in a response.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct ToolCall {
    pub id: String,
    pub function: FunctionCall,
}

/// The called function and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct FunctionCall {
    /// Index of the call in the response.
    pub index: u64,
    pub name: String,
    /// A JSON object, not its text.
    pub arguments: Map<String, Value>,
}

/// The message that a model generates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct AnswerMessage {
    pub role: String,
    pub content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// The rendered prompt, if the request asks for it instead of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct DebugInfo {
    pub rendered_template: String,
}

/// A line in the response of `/api/generate`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct GenerateResponse {
    pub model: String,
    pub created_at: String,
    pub response: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    pub done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<String>,
    /// The tokens of prompt and answer. A later request may send them to continue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<u32>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprob>,
    /// Lode extension, in the last line: parts of the request that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    #[serde(rename = "_debug_info", skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<DebugInfo>,
}

/// A line in the response of `/api/chat`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct ChatResponse {
    pub model: String,
    pub created_at: String,
    pub message: AnswerMessage,
    pub done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprob>,
    /// Lode extension, in the last line: parts of the request that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    #[serde(rename = "_debug_info", skip_serializing_if = "Option::is_none")]
    pub debug_info: Option<DebugInfo>,
}
