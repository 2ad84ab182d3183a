//! The head of a model that scores texts: a cross-encoder, or a decoder that was trained to rank.

use serde::{Deserialize, Serialize};

use super::{Norm, Projection};

/// A number for each label: `output(norm(activation(dense(pooled))))`, of hidden states after the last norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scorer {
    /// What of the hidden states goes in.
    pub input: ScorerInput,
    /// What is between.
    pub dense: Option<ScorerDense>,
    /// `[labels, hidden]`.
    pub output: Projection,
    /// How many numbers there are.
    pub labels: u64,
    /// Which of them says how well a text answers a query; none where none does, as of a model that only classifies.
    pub score: Option<Score>,
}

/// What of the numbers of a head is a score: one of them, or the difference of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// The larger, the better.
    pub yes: u64,
    /// Taken from it.
    pub no: Option<u64>,
}

/// A hidden state for a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScorerInput {
    /// That of the first token.
    First,
    /// The mean of all.
    Mean,
    /// That of the last token.
    Last,
}

/// `norm(activation(projection(x)))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScorerDense {
    /// `[hidden, hidden]`.
    pub projection: Projection,
    /// Of what the projection gives.
    pub activation: ScorerActivation,
    /// Of what the activation gives.
    pub norm: Option<Norm>,
}

/// What is done to each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScorerActivation {
    /// `tanh(x)`.
    Tanh,
    /// `x · Φ(x)`, Φ the normal distribution.
    Gelu,
}
