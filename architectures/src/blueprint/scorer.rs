//! Head of a model that scores texts: a cross-encoder, or a decoder that was trained to rank.

use serde::{Deserialize, Serialize};

use super::{Norm, Projection};

/// Head that computes a number for each label: `output(norm(activation(dense(pooled))))`, from
/// hidden states after the last norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scorer {
    /// Pooling of the hidden states.
    pub input: ScorerInput,
    /// Layer between pooling and output.
    pub dense: Option<ScorerDense>,
    /// `[labels, hidden]`.
    pub output: Projection,
    /// Number of labels.
    pub labels: u64,
    /// Labels that tell how well a text answers a query; `None` for a model that only classifies.
    pub score: Option<Score>,
}

/// Score as a function of a head's outputs: one output, or the difference of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// Index of the output that is larger for better texts.
    pub yes: u64,
    /// Index of the output that is subtracted.
    pub no: Option<u64>,
}

/// Pooling: the hidden state that represents a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScorerInput {
    /// Hidden state of the first token.
    First,
    /// Mean of all hidden states.
    Mean,
    /// Hidden state of the last token.
    Last,
}

/// `norm(activation(projection(x)))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScorerDense {
    /// `[hidden, hidden]`.
    pub projection: Projection,
    /// Activation of the output of the projection.
    pub activation: PooledActivation,
    /// Norm of the output of the activation.
    pub norm: Option<Norm>,
}

/// Element-wise activation of a vector behind pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PooledActivation {
    /// `tanh(x)`.
    Tanh,
    /// `x · Φ(x)`; Φ is the cumulative normal distribution.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `x · sigmoid(x)`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}
