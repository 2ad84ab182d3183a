//! `/api/embed`, and the older `/api/embeddings`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::answer::is_zero;
use super::null::or_default;
use super::{KeepAliveSpec, Options};
use crate::shapes;

/// Body of `POST /api/embed`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct EmbedRequest {
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    /// A text, or a list of texts.
    #[schemars(schema_with = "shapes::texts")]
    pub input: Value,
    /// Whether the end of a text that does not fit is dropped. The default is true.
    pub truncate: Option<bool>,
    /// Keep only this number of leading elements of each vector; 0 keeps all.
    #[serde(deserialize_with = "or_default")]
    pub dimensions: u32,
    /// Name of the model's prompt that precedes each text, such as `query`. Without it, the model's
    /// default prompt is used.
    pub prompt_name: Option<String>,
    pub keep_alive: Option<KeepAliveSpec>,
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
}

impl EmbedRequest {
    /// Returns the texts. A single empty text counts as no text, as in Ollama.
    ///
    /// # Errors
    /// Fails if the input is neither a text nor a list of texts.
    pub fn texts(&self) -> Result<Vec<String>, String> {
        let invalid = || "invalid input type".to_owned();
        match &self.input {
            Value::Null => Ok(Vec::new()),
            Value::String(text) if text.is_empty() => Ok(Vec::new()),
            Value::String(text) => Ok(vec![text.clone()]),
            Value::Array(items) => {
                items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(invalid)).collect()
            }
            _ => Err(invalid()),
        }
    }
}

/// Response of `POST /api/embed`. Durations are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct EmbedResponse {
    pub model: String,
    /// One vector for each text, normalized to L2 length 1.
    pub embeddings: Vec<Vec<f32>>,
    #[serde(skip_serializing_if = "is_zero")]
    pub total_duration: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub load_duration: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub prompt_eval_count: u64,
    /// Lode extension: tokens that were dropped because a text did not fit the context.
    #[serde(skip_serializing_if = "is_zero")]
    pub prompt_truncated_count: u64,
}

/// Body of `POST /api/embeddings`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct EmbeddingsRequest {
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    #[serde(deserialize_with = "or_default")]
    pub prompt: String,
    pub keep_alive: Option<KeepAliveSpec>,
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
}

/// Response of `POST /api/embeddings`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct EmbeddingsResponse {
    pub embedding: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn input_is_text_or_texts() {
        for (input, expect) in [
            (json!("a"), Ok(vec!["a"])),
            (json!(["a", ""]), Ok(vec!["a", ""])),
            (json!(""), Ok(vec![])),
            (json!([]), Ok(vec![])),
            (json!(null), Ok(vec![])),
            (json!(1), Err("invalid input type")),
            (json!(["a", 1]), Err("invalid input type")),
        ] {
            let request: EmbedRequest = serde_json::from_value(json!({"input": input})).expect("a request");
            let texts = request.texts();
            let texts = texts.as_ref().map(|texts| texts.iter().map(String::as_str).collect()).map_err(String::as_str);
            assert_eq!(texts, expect, "{input}");
        }
    }
}
