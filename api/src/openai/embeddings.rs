//! `/v1/embeddings`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use protocol::{EmbedInput, EmbedReply, EmbedRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::completions::Texts;
use crate::Refusal;
use crate::ollama::KeepAliveSpec;

/// Maximum number of inputs in a request.
const MOST_INPUTS: usize = 2048;

/// Body of `POST /v1/embeddings`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
#[schemars(rename = "OpenAiEmbeddingsRequest")]
pub struct EmbeddingsRequest {
    pub model: String,
    pub input: Option<Texts>,
    pub encoding_format: Option<String>,
    pub dimensions: Option<u32>,
    /// Name of the model's prompt that precedes each text, such as `query`. Not part of `OpenAI`'s
    /// API.
    pub prompt_name: Option<String>,
    /// Lode extension: how long the model stays loaded, as in Ollama's API.
    pub keep_alive: Option<KeepAliveSpec>,
}

/// Encoding of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// A list of numbers.
    Float,
    /// Little-endian `f32` in base64.
    Base64,
}

impl EmbeddingsRequest {
    /// Converts the request to the runner's request and the encoding of the response. The end of an
    /// input that does not fit is dropped.
    ///
    /// # Errors
    /// Names the field that asks for something unsupported.
    pub fn translate(self) -> Result<(EmbedRequest, Encoding), Refusal> {
        let encoding = match self.encoding_format.as_deref() {
            None | Some("float") => Encoding::Float,
            Some("base64") => Encoding::Base64,
            Some(other) => {
                let message = format!("`{other}` is no encoding; expected float or base64");
                return Err(Refusal::new("encoding_format", message));
            }
        };
        if self.dimensions == Some(0) {
            return Err(Refusal::new("dimensions", "a vector has at least one dimension"));
        }
        let inputs = match self.input.ok_or_else(|| Refusal::new("input", "there is nothing to embed"))? {
            Texts::One(text) => vec![EmbedInput::Text { text }],
            Texts::Several(texts) => texts.into_iter().map(|text| EmbedInput::Text { text }).collect(),
            Texts::Tokens(tokens) => vec![EmbedInput::Tokens { tokens }],
            Texts::SeveralTokens(all) => all.into_iter().map(|tokens| EmbedInput::Tokens { tokens }).collect(),
        };
        let nothing = |input: &EmbedInput| match input {
            EmbedInput::Text { text } => text.is_empty(),
            EmbedInput::Tokens { tokens } => tokens.is_empty(),
        };
        if inputs.is_empty() || inputs.iter().any(nothing) {
            return Err(Refusal::new("input", "an input is empty; there is nothing to embed"));
        }
        if inputs.len() > MOST_INPUTS {
            return Err(Refusal::new("input", format!("{} inputs, at most {MOST_INPUTS} at a time", inputs.len())));
        }
        let (prompt, dimensions) = (self.prompt_name, self.dimensions);
        Ok((EmbedRequest { inputs, truncate: true, prompt, dimensions, first: 0 }, encoding))
    }
}

/// Response of `POST /v1/embeddings`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
#[schemars(rename = "OpenAiEmbeddingsResponse")]
pub struct EmbeddingsResponse {
    pub object: &'static str,
    pub data: Vec<Embedding>,
    pub model: String,
    pub usage: EmbeddingsUsage,
}

/// A vector.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiEmbedding")]
pub struct Embedding {
    pub object: &'static str,
    pub index: usize,
    #[serde(rename = "embedding")]
    pub vector: Vector,
}

/// The elements of a vector.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "OpenAiVector")]
pub enum Vector {
    /// A list of numbers.
    Numbers(Vec<f32>),
    /// Little-endian `f32` in base64.
    Base64(String),
}

/// Token usage of all inputs.
#[expect(clippy::struct_field_names, reason = "the fields are OpenAI's")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EmbeddingsUsage {
    pub prompt_tokens: u64,
    pub total_tokens: u64,
    /// Lode extension: tokens that were dropped because an input did not fit the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_tokens: Option<u64>,
}

impl EmbeddingsResponse {
    /// Creates the response from the reply of the runner.
    pub fn new(model: String, reply: EmbedReply, encoding: Encoding) -> Self {
        let prompt_tokens = reply.prompt_tokens.iter().sum();
        let truncated_tokens = Some(reply.truncated_tokens).filter(|count| *count > 0);
        let written = |numbers: Vec<f32>| match encoding {
            Encoding::Float => Vector::Numbers(numbers),
            Encoding::Base64 => {
                let bytes: Vec<u8> = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
                Vector::Base64(STANDARD.encode(bytes))
            }
        };
        let embedding = |(index, numbers)| Embedding { object: "embedding", index, vector: written(numbers) };
        Self {
            object: "list",
            data: reply.embeddings.into_iter().enumerate().map(embedding).collect(),
            model,
            usage: EmbeddingsUsage { prompt_tokens, total_tokens: prompt_tokens, truncated_tokens },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(request: Value) -> Result<(EmbedRequest, Encoding), Refusal> {
        serde_json::from_value::<EmbeddingsRequest>(request).expect("a request").translate()
    }

    #[test]
    fn every_form_of_input() {
        for (input, inputs) in [
            (json!("a"), json!([{"kind": "text", "text": "a"}])),
            (json!(["a", "b"]), json!([{"kind": "text", "text": "a"}, {"kind": "text", "text": "b"}])),
            (json!([1, 2]), json!([{"kind": "tokens", "tokens": [1, 2]}])),
            (json!([[1], [2]]), json!([{"kind": "tokens", "tokens": [1]}, {"kind": "tokens", "tokens": [2]}])),
        ] {
            let (request, encoding) = read(json!({"model": "m", "input": input, "dimensions": 8})).expect("a request");
            assert_eq!(serde_json::to_value(&request.inputs).expect("JSON"), inputs);
            assert_eq!((request.dimensions, request.truncate, encoding), (Some(8), true, Encoding::Float));
        }
        for (bad, param) in [
            (json!({}), "input"),
            (json!({"input": ""}), "input"),
            (json!({"input": []}), "input"),
            (json!({"input": vec!["x"; 2049]}), "input"),
            (json!({"input": "x", "dimensions": 0}), "dimensions"),
            (json!({"input": "x", "encoding_format": "int8"}), "encoding_format"),
        ] {
            assert_eq!(read(bad).expect_err("refused").param, param);
        }
    }

    #[test]
    fn both_encodings() {
        let reply = EmbedReply { embeddings: vec![vec![1.0, -0.5]], prompt_tokens: vec![3], truncated_tokens: 2 };
        let document = |vector: Value| {
            json!({
                "object": "list", "data": [{"object": "embedding", "index": 0, "embedding": vector}], "model": "m",
                "usage": {"prompt_tokens": 3, "total_tokens": 3, "truncated_tokens": 2},
            })
        };
        for (encoding, vector) in [(Encoding::Float, json!([1.0, -0.5])), (Encoding::Base64, json!("AACAPwAAAL8="))] {
            let response = EmbeddingsResponse::new("m".to_owned(), reply.clone(), encoding);
            assert_eq!(serde_json::to_value(response).expect("JSON"), document(vector));
        }
    }
}
