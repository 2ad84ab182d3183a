//! Feed-forward networks.

use serde::{Deserialize, Serialize};

use super::{Matrices, Norm, Projection, Tensor};

/// Feed-forward network of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ffn {
    /// `down(act(gate(x)) · up(x))`.
    Gated(Box<Gated>),
    /// `down(act(up(x)))`.
    Plain(Box<Plain>),
    /// Several networks; each token uses a few of them.
    Experts(Box<Experts>),
    /// Sum of several networks that read the same input.
    Sum(Vec<Branch>),
    /// No feed-forward network: the layer has a mixer only.
    None,
}

/// Network of a sum: `after(ffn(before(x)))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// Norm of the input.
    pub before: Option<Norm>,
    /// The network.
    pub ffn: Ffn,
    /// Norm of the output.
    pub after: Option<Norm>,
}

/// Gated feed-forward network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gated {
    /// Number of rows of `gate` and `up`.
    pub width: u64,
    /// Activation of the gate.
    pub activation: Activation,
    /// Factor of the gate before its activation.
    pub gate_scale: Option<f64>,
    /// Number of standard deviations `n` above their mean up to which the elements of the gate are
    /// 0: `relu(gate - mean - n · deviation)`, before its activation.
    pub cutoff: Option<f64>,
    /// `[width, hidden]`.
    pub gate: Projection,
    /// `[width, hidden]`.
    pub up: Projection,
    /// `[width]`: norm of the input of `down`.
    pub norm: Option<Norm>,
    /// `[hidden, width]`.
    pub down: Projection,
}

impl Gated {
    /// Returns a network of a gate, `up` and `down`.
    pub fn new(width: u64, activation: Activation, [gate, up, down]: [Projection; 3]) -> Self {
        Self { width, activation, gate_scale: None, cutoff: None, gate, up, norm: None, down }
    }
}

/// Learned parameters of the activation xIELU (arXiv 2411.13010): `a·x² + 0.5·x` if `x > 0`, else
/// `b·(exp(min(x, -1e-6)) - 1 - x) + 0.5·x`, where `a = softplus(positive)` and
/// `b = 0.5 + softplus(negative)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xielu {
    /// `[1]`.
    pub positive: Tensor,
    /// `[1]`.
    pub negative: Tensor,
}

/// Feed-forward network without a gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plain {
    /// Number of rows of `up`.
    pub width: u64,
    /// Activation of the output of `up`.
    pub activation: Activation,
    /// Parameters of xIELU, which is then the activation.
    pub curve: Option<Xielu>,
    /// `[width, hidden]`.
    pub up: Projection,
    /// `[hidden, width]`.
    pub down: Projection,
}

/// Networks of the same shape; a router selects some of them for each token:
/// `Σ weight · expert(x) + shared(x)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Number of experts.
    pub count: u64,
    /// Number of rows of an expert's `up`, and of its `gate`.
    pub width: u64,
    /// Activation of the gates, or of the outputs of `up` if there are no gates.
    pub activation: Activation,
    /// Router, which selects the experts of a token.
    pub router: Router,
    /// Norm of the experts' input; the router reads the input before it.
    pub input_norm: Option<Norm>,
    /// Whether the weights of the chosen experts multiply their inputs, and not their outputs.
    pub weighs_inputs: bool,
    /// `[width, hidden]` for each expert; `None` if the experts have no gates.
    pub gate: Option<Matrices>,
    /// `[width, hidden]` for each expert.
    pub up: Matrices,
    /// `[hidden, width]` for each expert.
    pub down: Matrices,
    /// Expert that all tokens use in addition.
    pub shared: Option<SharedExpert>,
    /// Projections between the stream and the input and output of the experts, if those are
    /// narrower than the stream. The router and the shared expert read the stream.
    pub latent: Option<ExpertLatent>,
}

/// Projections into and out of the space in which experts compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertLatent {
    /// Width of the space; replaces `hidden` in the shapes of the experts' matrices.
    pub width: u64,
    /// `[width, hidden]`.
    pub down: Projection,
    /// `[hidden, width]`.
    pub up: Projection,
}

/// Router: selects the experts of a token and their weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// `[count, hidden]`.
    pub projection: Projection,
    /// Norm of the input.
    pub norm: Option<Norm>,
    /// Factor of the logits.
    pub logit_scale: Option<f64>,
    /// Function that maps logits to scores.
    pub scores: RouterScores,
    /// `[count]`: added to the scores for the selection only.
    pub bias: Option<Tensor>,
    /// `[vocabulary, top_k]`: the experts of each token, which are then not selected by scores.
    pub of_tokens: Option<Tensor>,
    /// If set, experts are selected from the best groups only.
    pub groups: Option<Groups>,
    /// If set, experts are chosen one after the other, and the weight of each is a softmax over the
    /// logits near to it: an expert that is not chosen yet, with the logit `x`, counts beside the
    /// best one, `best`, if `(best - x) / max(|x|, best)` is at most this number.
    pub nearness: Option<f64>,
    /// Number of experts per token.
    pub top_k: u64,
    /// Whether the weights are divided by their sum.
    pub normalize: bool,
    /// Factor of the weights.
    pub scale: f64,
    /// `[count]`: a factor of the weights for each expert.
    pub expert_scales: Option<Tensor>,
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
    /// `sqrt(ln(1 + exp(x)))` of each logit `x`.
    RootOfSoftplus,
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
    pub ffn: Network,
    /// `[1, hidden]`: the sigmoid of its output multiplies the output of the network.
    pub gate: Option<Projection>,
}

/// Feed-forward network that is not made of experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// With a gate.
    Gated(Box<Gated>),
    /// Without a gate.
    Plain(Box<Plain>),
}

impl Network {
    /// Returns the number of rows of `up`.
    pub fn width(&self) -> u64 {
        match self {
            Self::Gated(own) => own.width,
            Self::Plain(own) => own.width,
        }
    }

    /// Returns the activation.
    pub fn activation(&self) -> Activation {
        match self {
            Self::Gated(own) => own.activation,
            Self::Plain(own) => own.activation,
        }
    }
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
    /// GELU, approximated as `x · sigmoid(1.702 · x)` (CLIP).
    GeluQuick,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
    /// Activation of gpt-oss, for gated networks only: `g · sigmoid(1.702 · g) · (u + 1)`. The gate
    /// `g` is clamped to at most `limit` and the other factor `u` to ± `limit`.
    ClampedSilu {
        /// Bound of the clamping.
        limit: f64,
    },
    /// For gated networks only: `g · sigmoid(g) · u`, with the same clamping.
    BoundedSilu {
        /// Bound of the clamping.
        limit: f64,
    },
}

impl Activation {
    /// Activations that have a name in configs.
    const NAMED: [(Self, &'static str); 6] = [
        (Self::Silu, "silu"),
        (Self::GeluTanh, "gelu_pytorch_tanh"),
        (Self::Gelu, "gelu"),
        (Self::GeluQuick, "quick_gelu"),
        (Self::Relu, "relu"),
        (Self::ReluSquared, "relu2"),
    ];

    /// Returns the name in configs.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(activation, _)| *activation == self).map_or("clamped silu", |(_, name)| name)
    }

    /// Returns the bound of an activation that clamps its inputs, which needs a gate.
    pub fn limit(self) -> Option<f64> {
        match self {
            Self::ClampedSilu { limit } | Self::BoundedSilu { limit } => Some(limit),
            _ => None,
        }
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
