//! `/v1/rerank` and `/api/rerank`, as Jina, Cohere and llama.cpp's server have them.

use protocol::{RerankReply, RerankRequest as Asked};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ollama::{KeepAliveSpec, Options};
use crate::{Demand, Refusal, ollama};

/// Most documents of a request.
const MOST_DOCUMENTS: usize = 2048;

/// Body of a request.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RerankRequest {
    /// The name of a model that can `rerank`.
    pub model: String,
    /// What is looked for.
    pub query: String,
    /// What it is looked for in.
    pub documents: Vec<RerankDocument>,
    /// How many results are told, the best; all of them where it is left out.
    pub top_n: Option<u64>,
    /// Whether results have their documents.
    pub return_documents: Option<bool>,
    /// Whether the end of what does not fit is dropped; the default.
    pub truncate: Option<bool>,
    /// The most tokens of a document; as many as fit where it is left out.
    pub max_tokens_per_doc: Option<u64>,
    /// What counts as an answer, for models that are told so; their own words for it where it is left out.
    pub instruction: Option<String>,
    /// Scores as the model computes them, before they are brought between 0 and 1.
    pub raw_scores: Option<bool>,
    /// Lode's own, as Ollama's.
    pub keep_alive: Option<KeepAliveSpec>,
    /// Lode's own: Ollama's options.
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
}

/// A document.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a document is neither a text nor an object with a `text`")]
pub enum RerankDocument {
    /// As it is.
    Text(String),
    /// In an object.
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
    /// What is asked of the model.
    ///
    /// # Errors
    /// The field that asks for what cannot be had.
    pub fn translate(&self) -> Result<Asked, Refusal> {
        if self.query.is_empty() {
            return Err(Refusal::new("query", "it is empty; expected what to look for"));
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

    /// What is wanted of the model beside.
    ///
    /// # Errors
    /// An option that has not the type that it needs.
    pub fn demand(&self) -> Result<Demand, String> {
        ollama::demand(&self.options, self.keep_alive)
    }

    /// The results, the best first.
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

/// A document with its score.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Ranked {
    /// Its place among the documents of the request.
    pub index: usize,
    /// The larger, the better; between 0 and 1 unless the model says otherwise, or raw scores are wanted.
    pub relevance_score: f64,
    /// Where it is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<RankedDocument>,
}

/// A document of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RankedDocument {
    /// As it came.
    pub text: String,
}

/// Answer of `POST /v1/rerank`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RerankResponse {
    /// `list`.
    pub object: &'static str,
    /// The name of the model, as it was asked for.
    pub model: String,
    /// The best first.
    pub results: Vec<Ranked>,
    /// What it took.
    pub usage: RerankUsage,
}

/// Tokens of all documents, each with the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RerankUsage {
    /// Those that were computed.
    pub prompt_tokens: u64,
    /// The same.
    pub total_tokens: u64,
    /// Lode's own: tokens that were dropped because they did not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_tokens: Option<u64>,
}

impl RerankResponse {
    /// What a model made of a request.
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

/// Answer of `POST /api/rerank`; durations in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "OllamaRerankResponse")]
pub struct TimedRerankResponse {
    /// The name of the model, as it was asked for.
    pub model: String,
    /// The best first.
    pub results: Vec<Ranked>,
    /// From the request on.
    pub total_duration: u64,
    /// Until the model was loaded.
    pub load_duration: u64,
    /// Tokens of all documents, each with the query.
    pub prompt_eval_count: u64,
    /// Tokens that were dropped because they did not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_truncated_count: Option<u64>,
}

impl TimedRerankResponse {
    /// What a model made of a request, and how long it took.
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
