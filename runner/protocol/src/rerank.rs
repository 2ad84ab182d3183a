//! Reranking: how well each of some texts answers a query.

use serde::{Deserialize, Serialize};

/// What to score.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RerankRequest {
    /// What is looked for.
    pub query: String,
    /// Each gets a score.
    pub documents: Vec<String>,
    /// What counts as an answer, in the place of the model's own words for it.
    pub instruction: Option<String>,
    /// Whether the end of what does not fit is dropped; else it is refused.
    pub truncate: bool,
    /// The most tokens of a document.
    pub document_tokens: Option<u64>,
    /// Scores as the model computes them, before they are brought between 0 and 1.
    pub raw_scores: bool,
    /// The place of the first document in the client's list, for errors.
    #[serde(default)]
    pub first: u64,
}

/// The scores, in the order of the documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RerankReply {
    /// The larger, the better.
    pub scores: Vec<f64>,
    /// Tokens that each document took with its query, those that were dropped not counted.
    pub prompt_tokens: Vec<u64>,
    /// Tokens of all documents and queries that were dropped because they did not fit.
    pub truncated_tokens: u64,
}
