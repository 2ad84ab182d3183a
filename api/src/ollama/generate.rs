//! `/api/generate` and `/api/chat`.

use protocol::{Logprob, Message, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::KeepAliveSpec;

/// Body of `POST /api/generate`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct GenerateRequest {
    pub model: String,
    pub prompt: String,
    pub suffix: String,
    pub system: Option<String>,
    pub template: Option<String>,
    pub context: Option<Vec<i64>>,
    pub stream: Option<bool>,
    pub raw: bool,
    pub format: Option<Value>,
    pub keep_alive: Option<KeepAliveSpec>,
    pub images: Option<Vec<String>>,
    pub options: Option<Map<String, Value>>,
    pub think: Option<Think>,
    pub logprobs: bool,
    pub top_logprobs: u32,
}

/// Body of `POST /api/chat`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct ChatRequest {
    pub model: String,
    pub messages: Vec<Message>,
    pub stream: Option<bool>,
    pub format: Option<Value>,
    pub keep_alive: Option<KeepAliveSpec>,
    pub tools: Option<Vec<Value>>,
    pub options: Option<Map<String, Value>>,
    pub think: Option<Think>,
    pub logprobs: bool,
    pub top_logprobs: u32,
}

/// Whether, or how much, to think.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Think {
    /// Yes or no.
    Flag(bool),
    /// `low`, `medium`, `high` or `max`.
    Level(String),
}

impl Think {
    /// Whether thinking is asked for.
    pub fn is_wanted(&self) -> bool {
        *self != Self::Flag(false)
    }
}

/// Counts and times in the last line; durations in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct Metrics {
    pub total_duration: u64,
    pub load_duration: u64,
    pub prompt_eval_count: u64,
    pub prompt_eval_duration: u64,
    pub eval_count: u64,
    pub eval_duration: u64,
    /// Of the prompt's tokens, found in the KV cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub prompt_cached_count: u64,
    /// Tokens of the prompt that were dropped because they did not fit: never silently.
    #[serde(skip_serializing_if = "is_zero")]
    pub prompt_truncated_count: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Metrics {
    /// The metrics of a generation; total and load in nanoseconds.
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
        }
    }
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
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

/// A line of the answer to `/api/generate`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct GenerateResponse {
    pub model: String,
    pub created_at: String,
    pub response: String,
    pub done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprob>,
}

/// A line of the answer to `/api/chat`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct ChatResponse {
    pub model: String,
    pub created_at: String,
    pub message: Message,
    pub done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprob>,
}
