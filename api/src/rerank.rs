//! `/v1/rerank` and `/api/rerank`, as in the APIs of Jina, Cohere and llama.cpp's server.

use protocol::{RerankReply, RerankRequest as Asked};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ollama::{KeepAliveSpec, Options};
use crate::{GenerationOptions, Refusal, ollama};

/// Maximum number of documents in a request.
const MOST_DOCUMENTS: usize = 2048;

/// Body of a rerank request.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RerankRequest {
    /// Name of a model with the capability `rerank`.
    pub model: String,
    /// The search query.
    pub query: String,
    /// Documents to rank.
    pub documents: Vec<RerankDocument>,
    /// Number of best results to return. The default is all.
    pub top_n: Option<u64>,
    /// Whether results include their documents.
    pub return_documents: Option<bool>,
    /// Whether the end of a text that does not fit is dropped. The default is true.
    pub truncate: Option<bool>,
    /// Maximum number of tokens of a document. The default is as many as fit.
    pub max_tokens_per_doc: Option<u64>,
    /// Instruction that says which documents are relevant, for models that take one. The default is
    /// the model's own instruction.
    pub instruction: Option<String>,
    /// Whether to return the model's raw scores, without mapping them to the range from 0 to 1.
    pub raw_scores: Option<bool>,
    /// Lode extension: how long the model stays loaded, as in Ollama's API.
    pub keep_alive: Option<KeepAliveSpec>,
    /// Lode extension: Ollama's options.
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
}

/// A document to rank.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a document is neither a text nor an object with a `text`")]
pub enum RerankDocument {
    /// Plain text.
    Text(String),
    /// An object with a text.
    Object {
        /// The text.
        text: String,
    },
}

impl RerankDocument {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

impl RerankRequest {
    /// Converts the request to the runner's request.
    ///
    /// # Errors
    /// Names the field that asks for something unsupported.
    pub fn translate(&self) -> Result<Asked, Refusal> {
        if self.query.is_empty() {
            return Err(Refusal::new("query", "it is empty"));
        }
        if self.documents.is_empty() {
            return Err(Refusal::new("documents", "there are none; expected a list of texts"));
        }
        if self.documents.len() > MOST_DOCUMENTS {
            let message = format!("{} documents, at most {MOST_DOCUMENTS} at a time", self.documents.len());
            return Err(Refusal::new("documents", message));
        }
        for (name, value) in [("top_n", self.top_n), ("max_tokens_per_doc", self.max_tokens_per_doc)] {
            if value == Some(0) {
                return Err(Refusal::new(name, "it is 0, expected at least 1"));
            }
        }
        Ok(Asked {
            query: self.query.clone(),
            documents: self.documents.iter().map(|document| document.text().to_owned()).collect(),
            instruction: self.instruction.clone(),
            truncate: self.truncate.unwrap_or(true),
            document_tokens: self.max_tokens_per_doc,
            raw_scores: self.raw_scores.unwrap_or(false),
            first: 0,
        })
    }

    /// Returns the generation options of the request.
    ///
    /// # Errors
    /// Fails if an option has a value of the wrong type.
    pub fn demand(&self) -> Result<GenerationOptions, String> {
        ollama::demand(&self.options, self.keep_alive)
    }

    /// Returns the results, best first.
    fn results(&self, scores: &[f64]) -> Vec<Ranked> {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]));
        order.truncate(self.top_n.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX)));
        let shown = self.return_documents == Some(true);
        let ranked = |index: usize| Ranked {
            index,
            relevance_score: scores[index],
            document: shown.then(|| RankedDocument { text: self.documents[index].text().to_owned() }),
        };
        order.into_iter().map(ranked).collect()
    }
}

/// A document and its score.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Ranked {
    /// Index of the document in the request.
    pub index: usize,
    /// Relevance, higher is better. It is between 0 and 1 unless the model defines otherwise or the
    /// request asks for raw scores.
    pub relevance_score: f64,
    /// The document, if the request asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<RankedDocument>,
}

/// The document of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RankedDocument {
    /// Text of the document, as in the request.
    pub text: String,
}

/// Response of `POST /v1/rerank`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RerankResponse {
    /// Always `list`.
    pub object: &'static str,
    /// Name of the model, as in the request.
    pub model: String,
    /// Results, best first.
    pub results: Vec<Ranked>,
    /// Token usage.
    pub usage: RerankUsage,
}

/// Token usage of all documents, each paired with the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RerankUsage {
    /// Tokens that were computed.
    pub prompt_tokens: u64,
    /// Equal to `prompt_tokens`.
    pub total_tokens: u64,
    /// Lode extension: tokens that were dropped because a text did not fit the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_tokens: Option<u64>,
}

impl RerankResponse {
    /// Creates the response to a request from the reply of the runner.
    pub fn new(request: &RerankRequest, reply: &RerankReply) -> Self {
        let prompt_tokens = reply.prompt_tokens.iter().sum();
        let truncated_tokens = Some(reply.truncated_tokens).filter(|count| *count > 0);
        Self {
            object: "list",
            model: request.model.clone(),
            results: request.results(&reply.scores),
            usage: RerankUsage { prompt_tokens, total_tokens: prompt_tokens, truncated_tokens },
        }
    }
}

/// Response of `POST /api/rerank`. Durations are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "OllamaRerankResponse")]
pub struct TimedRerankResponse {
    /// Name of the model, as in the request.
    pub model: String,
    /// Results, best first.
    pub results: Vec<Ranked>,
    /// Time since the request arrived.
    pub total_duration: u64,
    /// The part of it until the model was loaded.
    pub load_duration: u64,
    /// Tokens of all documents, each paired with the query.
    pub prompt_eval_count: u64,
    /// Tokens that were dropped because a text did not fit the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_truncated_count: Option<u64>,
}

impl TimedRerankResponse {
    /// Creates the response to a request from the reply of the runner and the two durations.
    pub fn new(request: &RerankRequest, reply: &RerankReply, [total_duration, load_duration]: [u64; 2]) -> Self {
        let RerankResponse { model, results, usage, .. } = RerankResponse::new(request, reply);
        Self {
            model,
            results,
            total_duration,
            load_duration,
            prompt_eval_count: usage.prompt_tokens,
            prompt_truncated_count: usage.truncated_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(request: Value) -> RerankRequest {
        serde_json::from_value(request).expect("a request")
    }

    #[test]
    fn the_best_comes_first() {
        let request = read(json!({"model": "m", "query": "q", "documents": ["a", {"text": "b"}, "c"], "top_n": 2,
            "return_documents": true}));
        let asked = request.translate().expect("a request");
        assert_eq!((asked.documents, asked.truncate), (vec!["a".to_owned(), "b".to_owned(), "c".to_owned()], true));
        let reply = RerankReply { scores: vec![0.25, 0.5, 0.25], prompt_tokens: vec![3, 4, 5], truncated_tokens: 0 };
        let expected = json!({
            "object": "list", "model": "m", "usage": {"prompt_tokens": 12, "total_tokens": 12},
            "results": [{"index": 1, "relevance_score": 0.5, "document": {"text": "b"}},
                {"index": 0, "relevance_score": 0.25, "document": {"text": "a"}}],
        });
        assert_eq!(serde_json::to_value(RerankResponse::new(&request, &reply)).expect("JSON"), expected);
    }

    #[test]
    fn what_cannot_be_ranked_is_told() {
        for (request, param) in [
            (json!({"documents": ["a"]}), "query"),
            (json!({"query": "q"}), "documents"),
            (json!({"query": "q", "documents": vec!["a"; 2049]}), "documents"),
            (json!({"query": "q", "documents": ["a"], "top_n": 0}), "top_n"),
            (json!({"query": "q", "documents": ["a"], "max_tokens_per_doc": 0}), "max_tokens_per_doc"),
        ] {
            assert_eq!(read(request).translate().expect_err("refused").param, param);
        }
        let error = serde_json::from_value::<RerankRequest>(json!({"documents": [1]})).expect_err("no text");
        assert!(error.to_string().contains("a document is neither a text nor"), "{error}");
    }
}
