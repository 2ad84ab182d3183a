//! Text, tokens and messages.

use serde::{Deserialize, Serialize};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text of the message; empty if there is none, as in a message that only calls a tool.
    #[serde(default, deserialize_with = "text_or_null")]
    pub content: String,
    /// All other fields that a template can read: `tool_calls`, `name`, ….
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

fn text_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Request to tokenize a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizeRequest {
    /// The text.
    pub text: String,
    /// If true, the tokens that the model expects around a text are added, such as BOS.
    #[serde(default)]
    pub add_special: bool,
    /// If true, special tokens in the text are parsed as such; if false, they are plain text.
    #[serde(default)]
    pub parse_special: bool,
}

/// Number of tokens of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCount {
    /// The number, including the tokens that a generation puts before the prompt.
    pub tokens: u64,
}

/// Token ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// The ids, in order.
    pub tokens: Vec<u32>,
}

/// Text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// The text.
    pub text: String,
}

/// Request to render a conversation with the chat template.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RenderRequest {
    /// The messages of the conversation.
    pub messages: Vec<Message>,
    /// Tool definitions, in the form that the template expects.
    pub tools: Option<serde_json::Value>,
    /// If true, the text ends with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// If true, and the answer begins after an assistant's message, the answer continues that
    /// message.
    pub continue_final_message: bool,
    /// Template to use in place of the model's own.
    pub template: Option<String>,
    /// Additional template variables, e.g. `enable_thinking`.
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// Documents that the answer is to be based on, in the form that the template expects.
    pub documents: Option<serde_json::Value>,
    /// Text after the gap, for fill-in-the-middle; the last message is the text before the gap.
    pub suffix: Option<String>,
    /// Local time of the client, in RFC 3339 format.
    pub now: Option<String>,
}
