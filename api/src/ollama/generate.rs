//! What `/api/generate` and `/api/chat` are asked.

use protocol::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::null::or_default;
use super::{KeepAliveSpec, Options, Think};
use crate::shapes;

/// Body of `POST /api/generate`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct GenerateRequest {
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    #[serde(deserialize_with = "or_default")]
    pub prompt: String,
    /// What comes after the answer.
    #[serde(deserialize_with = "or_default")]
    pub suffix: String,
    pub system: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub template: String,
    /// Tokens of the conversation so far, as an earlier answer told them.
    #[serde(deserialize_with = "or_default")]
    pub context: Vec<i64>,
    pub stream: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    pub raw: bool,
    /// `"json"`, or a JSON schema that the text must keep to.
    #[schemars(schema_with = "shapes::format")]
    pub format: Option<Value>,
    pub keep_alive: Option<KeepAliveSpec>,
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Vec<String>")]
    pub images: Vec<Value>,
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
    pub think: Option<Think>,
    /// Whether the beginning of a prompt that does not fit is dropped; the default.
    pub truncate: Option<bool>,
    /// Whether the oldest tokens go when the context is full; the default.
    pub shift: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    pub logprobs: bool,
    #[serde(deserialize_with = "or_default")]
    pub top_logprobs: i64,
    /// Answer with the rendered prompt only.
    #[serde(rename = "_debug_render_only", deserialize_with = "or_default")]
    pub debug_render_only: bool,
}

/// Body of `POST /api/chat`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct ChatRequest {
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    #[serde(deserialize_with = "or_default")]
    #[schemars(schema_with = "shapes::messages")]
    pub messages: Vec<Message>,
    pub stream: Option<bool>,
    /// `"json"`, or a JSON schema that the text must keep to.
    #[schemars(schema_with = "shapes::format")]
    pub format: Option<Value>,
    pub keep_alive: Option<KeepAliveSpec>,
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub tools: Vec<Value>,
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
    pub think: Option<Think>,
    /// Whether the beginning of a conversation that does not fit is dropped; the default.
    pub truncate: Option<bool>,
    /// Whether the oldest tokens go when the context is full; the default.
    pub shift: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    pub logprobs: bool,
    #[serde(deserialize_with = "or_default")]
    pub top_logprobs: i64,
    /// Answer with the rendered prompt only.
    #[serde(rename = "_debug_render_only", deserialize_with = "or_default")]
    pub debug_render_only: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_nothing() {
        let fields =
            ["model", "prompt", "suffix", "system", "template", "context", "stream", "raw", "format", "images"];
        let more = ["keep_alive", "options", "think", "truncate", "shift", "logprobs", "top_logprobs"];
        let all: Map<String, Value> =
            fields.iter().chain(&more).map(|name| ((*name).to_owned(), Value::Null)).collect();
        let request: GenerateRequest = serde_json::from_value(all.into()).expect("all of them may be null");
        assert!(request.keep_alive.is_none() && request.images.is_empty() && !request.raw);
        let chat = r#"{"model":"m","messages":null,"tools":null,"options":null,"logprobs":null}"#;
        let request: ChatRequest = serde_json::from_str(chat).expect("a request");
        assert!(request.messages.is_empty() && request.tools.is_empty());
    }
}
