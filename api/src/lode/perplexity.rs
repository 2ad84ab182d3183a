//! How well a model expects a text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/perplexity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PerplexityRequest {
    /// The model.
    pub model: String,
    /// The text. What looks like a special token in it is text too.
    pub text: String,
    /// Tokens that are evaluated together; without it as many as the context holds, or the whole text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Which tokens of a window count.
    pub scored: Scored,
}

/// Which tokens of a window count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scored {
    /// All but the first. What remains after the last whole window is a window too.
    #[default]
    All,
    /// Those that have half a window before them, as llama.cpp's `llama-perplexity` counts. What remains after the last
    /// whole window is left out.
    SecondHalf,
}

/// Answer of `POST /api/lode/perplexity`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PerplexityResponse {
    /// The model's name, complete.
    pub model: String,
    /// Tokens of the text, with those that the model wants around it.
    pub tokens: u64,
    /// Windows that were evaluated.
    pub windows: u64,
    /// Tokens that count.
    pub scored: u64,
    /// The mean of their negative log-probabilities, in nats.
    pub mean_nll: f64,
    /// The exponential of that.
    pub perplexity: f64,
}
