//! Perplexity of a text under a model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/perplexity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PerplexityRequest {
    /// Name of the model.
    pub model: String,
    /// The text. Special tokens in it are read as plain text.
    pub text: String,
    /// Number of tokens that are evaluated together. The default is the context length, or the
    /// length of the text if that is shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Which tokens of a window count.
    pub scored: Scored,
}

/// Which tokens of a window count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scored {
    /// All tokens except the first of each window. The rest after the last full window is a shorter
    /// window.
    #[default]
    All,
    /// The second half of each window, as in llama.cpp's `llama-perplexity`. The rest after the
    /// last full window is dropped.
    SecondHalf,
}

/// Response of `POST /api/lode/perplexity`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PerplexityResponse {
    /// Full name of the model.
    pub model: String,
    /// Number of tokens of the text, including the special tokens that the model puts around it.
    pub tokens: u64,
    /// Number of windows that were evaluated.
    pub windows: u64,
    /// Number of tokens that count.
    pub scored: u64,
    /// Mean negative log-probability of those tokens, in nats.
    pub mean_nll: f64,
    /// Exponential of `mean_nll`.
    pub perplexity: f64,
}
