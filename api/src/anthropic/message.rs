//! The response message.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::Limits;
use crate::CollectedAnswer;

/// Response of `POST /v1/messages`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Anthropic's")]
#[schemars(rename = "AnthropicMessage")]
pub struct Message {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub role: &'static str,
    pub model: String,
    pub content: Vec<Block>,
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<String>,
    pub usage: Usage,
}

/// A content block of a message.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "AnthropicBlock")]
pub enum Block {
    /// The model's reasoning. Its signature is empty: no other server needs to verify it.
    Thinking { thinking: String, signature: String },
    /// Text of the answer.
    Text { text: String },
    /// A tool call.
    ToolUse { id: String, name: String, input: Map<String, Value> },
}

/// Token usage of a message. `input_tokens` counts the prompt tokens that were computed, without
/// tokens found in the KV cache.
#[expect(clippy::struct_field_names, reason = "the fields are Anthropic's")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicUsage")]
pub struct Usage {
    pub input_tokens: u64,
    pub cache_creation_input_tokens: u64,
    /// Prompt tokens found in the KV cache.
    pub cache_read_input_tokens: u64,
    pub output_tokens: u64,
    /// Lode extension: prompt tokens that were dropped because the prompt did not fit the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_tokens: Option<u64>,
}

impl From<protocol::Usage> for Usage {
    fn from(usage: protocol::Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens: usage.tokens,
            truncated_tokens: Some(usage.truncated_tokens).filter(|count| *count > 0),
        }
    }
}

impl Message {
    /// Creates a message without content. `id` is a random string.
    pub fn begun(id: &str, model: &str) -> Self {
        Self {
            id: format!("msg_{id}"),
            kind: "message",
            role: "assistant",
            model: model.to_owned(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: Usage::default(),
        }
    }

    /// Returns the complete message.
    pub fn whole(self, answer: CollectedAnswer, limits: &Limits) -> Self {
        let mut content = Vec::new();
        if !answer.thinking.is_empty() {
            content.push(Block::Thinking { thinking: answer.thinking, signature: String::new() });
        }
        if !answer.text.is_empty() {
            content.push(Block::Text { text: answer.text });
        }
        let calls_tools = !answer.tool_calls.is_empty();
        for (at, call) in answer.tool_calls.into_iter().enumerate() {
            content.push(Block::ToolUse { id: call_id(&self.id, at), name: call.name, input: call.arguments });
        }
        let stop_sequence = limits.own_stop(answer.stop);
        let stopped = stop_sequence.is_some();
        let reason = |reason| limits.stop_reason(reason, calls_tools, answer.usage.tokens, stopped);
        Self { content, stop_reason: answer.reason.map(reason), stop_sequence, usage: answer.usage.into(), ..self }
    }
}

/// Returns the id of a tool call, which is the same in a stream and in a complete message.
pub(super) fn call_id(message: &str, call: usize) -> String {
    format!("toolu_{}_{call}", message.strip_prefix("msg_").unwrap_or(message))
}

/// Response of `POST /v1/messages/count_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Anthropic's")]
pub struct TokenCount {
    pub input_tokens: u64,
}
