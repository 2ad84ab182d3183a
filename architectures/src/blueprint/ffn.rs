//! Feed-forward networks.

use serde::{Deserialize, Serialize};

use super::{Matrices, Projection, Tensor};

/// Feed-forward network of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ffn {
    /// `down(act(gate(x)) · up(x))`.
    Gated(Box<Gated>),
    /// `down(act(up(x)))`.
    Plain(Box<Plain>),
    /// Several gated networks; each token uses a few of them.
    Experts(Box<Experts>),
}

/// Gated feed-forward network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gated {
    /// Number of rows of `gate` and `up`.
    pub width: u64,
    /// Activation of the gate.
    pub activation: Activation,
    /// `[width, hidden]`.
    pub gate: Projection,
    /// `[width, hidden]`.
    pub up: Projection,
    /// `[hidden, width]`.
    pub down: Projection,
}

/// Feed-forward network without a gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plain {
    /// Number of rows of `up`.
    pub width: u64,
    /// Activation of the output of `up`.
    pub activation: Activation,
    /// `[width, hidden]`.
    pub up: Projection,
    /// `[hidden, width]`.
    pub down: Projection,
}

/// Gated networks of the same shape; a router selects some of them for each token:
/// `Σ weight · expert(x) + shared(x)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Number of experts.
    pub count: u64,
    /// Number of rows of an expert's `gate` and `up`.
    pub width: u64,
    /// Activation of the gates.
    pub activation: Activation,
    /// Router, which selects the experts of a token.
    pub router: Router,
    /// `[width, hidden]` for each expert.
    pub gate: Matrices,
    /// `[width, hidden]` for each expert.
    pub up: Matrices,
    /// `[hidden, width]` for each expert.
    pub down: Matrices,
    /// Expert that all tokens use in addition.
    pub shared: Option<SharedExpert>,
}

/// Router: selects the experts of a token and their weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// `[count, hidden]`.
    pub projection: Projection,
    /// Function that maps logits to scores.
    pub scores: RouterScores,
    /// `[count]`: added to the scores for the selection only.
    pub bias: Option<Tensor>,
    /// If set, experts are selected from the best groups only.
    pub groups: Option<Groups>,
    /// Number of experts per token.
    pub top_k: u64,
    /// Whether the weights are divided by their sum.
    pub normalize: bool,
    /// Factor of the weights.
    pub scale: f64,
}

/// Function that maps a router's logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterScores {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// Softmax over the selected experts.
    SoftmaxOfChosen,
}

/// Groups of experts of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Groups {
    /// Number of groups.
    pub count: u64,
    /// Number of groups that are kept.
    pub keep: u64,
    /// Number of best scores in a group whose sum is the score of the group.
    pub best: u64,
}

/// Expert that every token uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedExpert {
    /// Feed-forward network.
    pub ffn: Gated,
    /// `[1, hidden]`: the sigmoid of its output multiplies the output of the network.
    pub gate: Option<Projection>,
}

/// Activation function.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU, tanh approximation.
    GeluTanh,
    /// GELU, exact by the error function.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// Activation of gpt-oss, for gated networks only: `g · sigmoid(1.702 · g) · (u + 1)`. The gate
    /// `g` is clamped to at most `limit` and the other factor `u` to ± `limit`.
    ClampedSilu {
        /// Bound of the clamping.
        limit: f64,
    },
}

impl Activation {
    /// Activations that have a name in configs.
    const NAMED: [(Self, &'static str); 4] =
        [(Self::Silu, "silu"), (Self::GeluTanh, "gelu_pytorch_tanh"), (Self::Gelu, "gelu"), (Self::Relu, "relu")];

    /// Returns the name in configs.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(activation, _)| *activation == self).map_or("clamped silu", |(_, name)| name)
    }

    /// Parses the name, or one of its synonyms in configs.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "swish" => Some(Self::Silu),
            "gelu_new" | "gelu_fast" => Some(Self::GeluTanh),
            _ => Self::NAMED.iter().find(|(_, own)| *own == name).map(|(activation, _)| *activation),
        }
    }
}
