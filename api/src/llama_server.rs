//! The API of llama.cpp's server, as far as clients use it with a single model: completion, infill,
//! tokenization, and the state of the server.
//!
//! llama.cpp's server has one model. Here a request may name one in `model`; for a request without
//! it, the caller chooses the model. Field names are llama.cpp's (`tools/server/README.md`). Fields
//! without a meaning here are ignored.

use protocol::{FinishReason, Format, GenerateEvent, Prompt, Usage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ollama::Options;
use crate::{CollectedAnswer, Frame, GenerationOptions, Refusal};

/// Body of `POST /completion`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "LlamaCompletionRequest")]
#[expect(missing_docs, reason = "the fields are llama.cpp's")]
pub struct CompletionRequest {
    /// Lode extension: name of the model.
    pub model: String,
    /// A text or a list of token ids.
    pub prompt: Value,
    /// Maximum number of tokens to generate; -1 for no limit but the context.
    pub n_predict: Option<i64>,
    pub stream: bool,
    pub stop: Vec<String>,
    pub json_schema: Option<Value>,
    /// Must be empty: GBNF grammars are not supported.
    pub grammar: Option<String>,
    /// `temperature`, `top_k`, `top_p`, `min_p`, `typical_p`, `repeat_penalty`, `repeat_last_n`,
    /// `presence_penalty`, `frequency_penalty`, `seed`. Other fields are ignored.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Body of `POST /infill`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "LlamaInfillRequest")]
#[expect(missing_docs, reason = "the fields are llama.cpp's")]
pub struct InfillRequest {
    pub input_prefix: String,
    pub input_suffix: String,
    #[serde(flatten)]
    pub completion: CompletionRequest,
}

/// The sampling options that are read from the remaining fields of a request.
const SAMPLING: [&str; 10] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "seed",
];

impl CompletionRequest {
    /// Converts the request to a prompt and its generation options.
    ///
    /// # Errors
    /// Names the field that asks for something unsupported.
    pub fn translate(self) -> Result<(Prompt, GenerationOptions), Refusal> {
        let prompt = match &self.prompt {
            Value::String(text) => Prompt::Text { text: text.clone() },
            Value::Array(tokens) => Prompt::Tokens { tokens: ids(tokens)? },
            _ => return Err(Refusal::new("prompt", "expected a text or a list of tokens")),
        };
        Ok((prompt, self.demand()?))
    }

    fn demand(self) -> Result<GenerationOptions, Refusal> {
        if self.grammar.as_ref().is_some_and(|grammar| !grammar.trim().is_empty()) {
            return Err(Refusal::new("grammar", "GBNF grammars are not supported; use `json_schema`"));
        }
        let named = self.rest.into_iter().filter(|(name, _)| SAMPLING.contains(&name.as_str())).collect();
        let (options, _) = Options::read(&named).map_err(|error| Refusal::new("options", error))?;
        let stop = Some(self.stop).filter(|stop| !stop.is_empty());
        let options = Options { num_predict: self.n_predict, stop, ..options };
        Ok(GenerationOptions {
            options,
            format: self.json_schema.map(|schema| Format::Schema { schema }),
            ..GenerationOptions::default()
        })
    }
}

impl InfillRequest {
    /// Converts the request to a prompt and its generation options. The model fills in the text
    /// between `input_prefix`, followed by `prompt`, and `input_suffix`.
    ///
    /// # Errors
    /// Names the field that asks for something unsupported.
    pub fn translate(self) -> Result<(Prompt, GenerationOptions), Refusal> {
        let middle = self.completion.prompt.as_str().unwrap_or_default();
        let prompt = Prompt::Insert { prefix: format!("{}{middle}", self.input_prefix), suffix: self.input_suffix };
        Ok((prompt, self.completion.demand()?))
    }
}

fn ids(tokens: &[Value]) -> Result<Vec<u32>, Refusal> {
    let id = |token: &Value| token.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = tokens.iter().map(id).collect::<Option<Vec<_>>>();
    ids.ok_or_else(|| Refusal::new("prompt", "a list may have tokens only; several texts are several requests"))
}

/// Response of `POST /completion` and `POST /infill`, and a document of their streams.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "LlamaCompletion")]
#[expect(missing_docs, reason = "the fields are llama.cpp's")]
pub struct Completion {
    pub content: String,
    pub stop: bool,
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopping_word: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_predicted: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_evaluated: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_cached: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// Token counts, times and rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "LlamaTimings")]
#[expect(missing_docs, reason = "the fields are llama.cpp's")]
pub struct Timings {
    pub prompt_n: u64,
    pub prompt_ms: f64,
    pub prompt_per_second: f64,
    pub predicted_n: u64,
    pub predicted_ms: f64,
    pub predicted_per_second: f64,
}

impl Completion {
    fn piece(model: &str, content: String) -> Self {
        Self { content, model: model.to_owned(), ..Self::default() }
    }

    fn end(model: &str, content: String, reason: FinishReason, usage: Usage, word: Option<String>) -> Self {
        let stop_type = match (reason, &word) {
            (FinishReason::Stop, Some(_)) => "word",
            (FinishReason::Stop, None) => "eos",
            (FinishReason::Length | FinishReason::Repetition, _) => "limit",
        };
        Self {
            stop: true,
            stop_type: Some(stop_type),
            stopping_word: Some(word.unwrap_or_default()),
            tokens_predicted: Some(usage.tokens),
            tokens_evaluated: Some(usage.prompt_tokens),
            tokens_cached: Some(usage.cached_tokens),
            truncated: Some(usage.truncated_tokens > 0),
            timings: Some(usage.into()),
            ..Self::piece(model, content)
        }
    }

    /// Returns the complete response.
    pub fn whole(model: &str, answer: CollectedAnswer) -> Self {
        let reason = answer.reason.unwrap_or(FinishReason::Stop);
        Self::end(model, answer.text, reason, answer.usage, answer.stop)
    }

    /// Converts a generation event to the frames of the stream.
    pub fn event(model: &str, event: GenerateEvent) -> Vec<Frame> {
        match event {
            GenerateEvent::Text { text, .. } if text.is_empty() => Vec::new(),
            GenerateEvent::Text { text, .. } => vec![Frame::data(&Self::piece(model, text))],
            // Completions of a plain prompt have no thinking and no tool calls.
            GenerateEvent::Thinking { .. } | GenerateEvent::ToolCall { .. } => Vec::new(),
            GenerateEvent::Done { reason, usage, stop, .. } => {
                vec![Frame::data(&Self::end(model, String::new(), reason, usage, stop))]
            }
            GenerateEvent::Error { error, .. } => vec![crate::openai::ErrorResponse::new(500, error).frame()],
        }
    }
}

impl From<Usage> for Timings {
    fn from(usage: Usage) -> Self {
        let millis = |nanos: u64| nanos as f64 / 1e6;
        let rate = |count: u64, nanos: u64| if nanos == 0 { 0.0 } else { count as f64 * 1e9 / nanos as f64 };
        let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        Self {
            prompt_n: computed,
            prompt_ms: millis(usage.prompt_nanos),
            prompt_per_second: rate(computed, usage.prompt_nanos),
            predicted_n: usage.tokens,
            predicted_ms: millis(usage.nanos),
            predicted_per_second: rate(usage.tokens, usage.nanos),
        }
    }
}

/// Body of `POST /tokenize`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "LlamaTokenizeRequest")]
#[expect(missing_docs, reason = "the fields are llama.cpp's")]
pub struct TokenizeRequest {
    /// Lode extension: name of the model.
    pub model: String,
    pub content: String,
    pub add_special: bool,
    pub parse_special: Option<bool>,
}

/// Response of `POST /tokenize`, and body of `POST /detokenize`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "LlamaTokens")]
#[expect(missing_docs, reason = "the fields are llama.cpp's")]
pub struct Tokens {
    /// Lode extension: name of the model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    pub tokens: Vec<u32>,
}

/// Response of `POST /detokenize`.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "LlamaText")]
#[expect(missing_docs, reason = "the fields are llama.cpp's")]
pub struct Text {
    pub content: String,
}

/// Response of `GET /health`.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "LlamaHealth")]
#[expect(missing_docs, reason = "the fields are llama.cpp's")]
pub struct Health {
    pub status: &'static str,
}

/// Response of `GET /props`.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "LlamaProps")]
#[expect(missing_docs, reason = "the fields are llama.cpp's")]
pub struct Props {
    pub default_generation_settings: Map<String, Value>,
    pub total_slots: u64,
    pub model_path: String,
    pub chat_template: String,
    pub build_info: String,
}

/// An entry in the response of `GET /slots`.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "LlamaSlot")]
#[expect(missing_docs, reason = "the fields are llama.cpp's")]
pub struct Slot {
    pub id: u64,
    pub model: String,
    pub n_ctx: u64,
    pub is_processing: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<(Prompt, GenerationOptions), Refusal> {
        serde_json::from_value::<CompletionRequest>(body).expect("a request").translate()
    }

    #[test]
    fn requests_are_translated() {
        let (prompt, demand) =
            read(json!({"prompt": "a", "n_predict": 5, "temperature": 0, "stop": ["x"], "cache_prompt": true}))
                .expect("a demand");
        assert_eq!(prompt, Prompt::Text { text: "a".to_owned() });
        assert_eq!((demand.options.num_predict, demand.options.temperature), (Some(5), Some(0.0)));
        assert_eq!(demand.options.stop, Some(vec!["x".to_owned()]));
        let (prompt, _) = read(json!({"prompt": [1, 2]})).expect("tokens");
        assert_eq!(prompt, Prompt::Tokens { tokens: vec![1, 2] });
        for (body, says) in [
            (json!({"prompt": ["a", "b"]}), "several requests"),
            (json!({}), "expected a text"),
            (json!({"prompt": "a", "grammar": "root ::= x"}), "GBNF"),
        ] {
            let error = read(body).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn ends_say_why() {
        let usage = Usage { prompt_tokens: 7, cached_tokens: 3, tokens: 2, ..Usage::default() };
        for (reason, word, expect) in [
            (FinishReason::Stop, None, "eos"),
            (FinishReason::Stop, Some("x"), "word"),
            (FinishReason::Length, None, "limit"),
        ] {
            let end = Completion::end("m", String::new(), reason, usage, word.map(str::to_owned));
            assert_eq!((end.stop_type, end.timings.map(|timings| timings.prompt_n)), (Some(expect), Some(4)));
        }
    }
}
