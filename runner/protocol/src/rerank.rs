//! Reranking: scores for how well documents answer a query.

use serde::{Deserialize, Serialize};

/// Request for the scores of some documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RerankRequest {
    /// The search query.
    pub query: String,
    /// The documents; each gets one score.
    pub documents: Vec<String>,
    /// Instruction that defines relevance; `None` means the model's default instruction.
    pub instruction: Option<String>,
    /// If true, the end of a text that does not fit is dropped; if false, such a text is refused.
    pub truncate: bool,
    /// Maximum number of tokens of a document.
    pub document_tokens: Option<u64>,
    /// If true, the scores are returned as the model computes them, not mapped to the range from 0
    /// to 1.
    pub raw_scores: bool,
    /// Index of the first document in the client's list, for error messages.
    #[serde(default)]
    pub first: u64,
}

/// The scores, in the order of the documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RerankReply {
    /// Scores; larger is better.
    pub scores: Vec<f64>,
    /// Number of tokens of each document with its query, without dropped tokens.
    pub prompt_tokens: Vec<u64>,
    /// Number of tokens, over all documents and queries, that were dropped because they did not
    /// fit.
    pub truncated_tokens: u64,
}
