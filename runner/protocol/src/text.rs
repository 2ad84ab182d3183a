//! Text, tokens and messages.

use serde::{Deserialize, Serialize};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What was said; empty where nothing was, as in a message that only calls a tool.
    #[serde(default, deserialize_with = "text_or_null")]
    pub content: String,
    /// Everything else that a template may look at: `tool_calls`, `name`, ….
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

fn text_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Text to be cut into tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizeRequest {
    /// The text.
    pub text: String,
    /// Add the tokens that the model wants around a text, such as BOS.
    #[serde(default)]
    pub add_special: bool,
    /// Read special tokens in the text as such, not as text.
    #[serde(default)]
    pub parse_special: bool,
}

/// How many tokens a prompt has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCount {
    /// With those that a generation puts before it.
    pub tokens: u64,
}

/// Token ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// In order.
    pub tokens: Vec<u32>,
}

/// Text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// The text.
    pub text: String,
}

/// A conversation to be rendered by the chat template.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RenderRequest {
    /// The conversation.
    pub messages: Vec<Message>,
    /// Tools, as the template wants them.
    pub tools: Option<serde_json::Value>,
    /// Begin the answer.
    pub add_generation_prompt: bool,
    /// Where the answer begins and the last message is the assistant's, go on with that.
    pub continue_final_message: bool,
    /// A template instead of the model's.
    pub template: Option<String>,
    /// Further variables, e.g. `enable_thinking`.
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// Documents that the answer is to be drawn from, as the template wants them.
    pub documents: Option<serde_json::Value>,
    /// What follows the gap that the last message precedes, where what is missing is asked for.
    pub suffix: Option<String>,
    /// The time where the request comes from, as RFC 3339 writes it.
    pub now: Option<String>,
}
