//! Feed-forward networks.

use serde::{Deserialize, Serialize};

use super::{Matrices, Projection, Tensor};

/// The feed-forward network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ffn {
    /// `down(act(gate(x)) · up(x))`.
    Gated(Box<Gated>),
    /// `down(act(up(x)))`.
    Plain(Box<Plain>),
    /// Several gated networks, of which each token takes a few.
    Experts(Box<Experts>),
}

/// A gated feed-forward network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gated {
    /// Rows of `gate` and `up`.
    pub width: u64,
    /// Of the gate.
    pub activation: Activation,
    /// `[width, hidden]`.
    pub gate: Projection,
    /// `[width, hidden]`.
    pub up: Projection,
    /// `[hidden, width]`.
    pub down: Projection,
}

/// A feed-forward network without a gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plain {
    /// Rows of `up`.
    pub width: u64,
    /// Of what `up` gives.
    pub activation: Activation,
    /// `[width, hidden]`.
    pub up: Projection,
    /// `[hidden, width]`.
    pub down: Projection,
}

/// Gated networks of one shape, of which a router chooses some for each token: `Σ weight · expert(x) + shared(x)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// How many there are.
    pub count: u64,
    /// Rows of an expert's `gate` and `up`.
    pub width: u64,
    /// Of the gates.
    pub activation: Activation,
    /// Which of them a token takes.
    pub router: Router,
    /// `[width, hidden]` of each.
    pub gate: Matrices,
    /// `[width, hidden]` of each.
    pub up: Matrices,
    /// `[hidden, width]` of each.
    pub down: Matrices,
    /// What all tokens take.
    pub shared: Option<SharedExpert>,
}

/// Which experts a token takes, and with which weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// `[count, hidden]`.
    pub projection: Projection,
    /// What logits become.
    pub scores: RouterScores,
    /// `[count]`: added to the scores for the choice only.
    pub bias: Option<Tensor>,
    /// Experts are chosen from the best groups only.
    pub groups: Option<Groups>,
    /// How many a token takes.
    pub top_k: u64,
    /// The weights are divided by their sum.
    pub normalize: bool,
    /// The weights are multiplied by it.
    pub scale: f64,
}

/// What a router's logits become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterScores {
    /// The softmax over all experts.
    Softmax,
    /// Each its sigmoid.
    Sigmoid,
    /// The softmax over the chosen ones.
    SoftmaxOfChosen,
}

/// Groups of experts of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Groups {
    /// How many there are.
    pub count: u64,
    /// How many are kept.
    pub keep: u64,
    /// A group is as good as the sum of so many of its best scores.
    pub best: u64,
}

/// An expert that every token takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedExpert {
    /// The network.
    pub ffn: Gated,
    /// `[1, hidden]`: what it gives is multiplied by its sigmoid.
    pub gate: Option<Projection>,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// GELU by the error function.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// Of a gated network only, that of gpt-oss: `g · sigmoid(1.702 · g) · (u + 1)`, where the gate `g` is at most `limit` and
    /// the other factor `u` within ± it.
    ClampedSilu {
        /// The limit.
        limit: f64,
    },
}

impl Activation {
    /// Those that have a name in configs.
    const NAMED: [(Self, &'static str); 4] =
        [(Self::Silu, "silu"), (Self::GeluTanh, "gelu_pytorch_tanh"), (Self::Gelu, "gelu"), (Self::Relu, "relu")];

    /// The name in configs.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(activation, _)| *activation == self).map_or("clamped silu", |(_, name)| name)
    }

    /// Reads the name, or one of the others that configs have for it.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "swish" => Some(Self::Silu),
            "gelu_new" | "gelu_fast" => Some(Self::GeluTanh),
            _ => Self::NAMED.iter().find(|(_, own)| *own == name).map(|(activation, _)| *activation),
        }
    }
}
