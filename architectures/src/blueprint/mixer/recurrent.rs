//! Mixers with a state of fixed size: delta nets, state space models and short convolutions.

use serde::{Deserialize, Serialize};

use super::attention::GateFunction;
use crate::blueprint::{Activation, Norm, Projection, Tensor};

/// Gated delta rule after a short convolution (Gated `DeltaNet`, arXiv 2412.06464; Kimi Delta
/// Attention, arXiv 2510.26692).
///
/// The state of each value head is a matrix `S` of `[key_dim, value_dim]`: `S ← exp(g)·S`,
/// `S ← S + k ⊗ β·(v - Sᵀk)`, `o = Sᵀq`, with `g = -decay_rate · softplus(decay + decay_bias)` and
/// `β = beta_scale · sigmoid(beta)`. Queries and keys are divided by their length, queries by the
/// root of `key_dim` too. The output is `norm(o) · gate_function(gate)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaNet {
    /// Number of query and key heads; divides `value_heads`.
    pub key_heads: u64,
    /// Number of value heads.
    pub value_heads: u64,
    /// Key head of each value head.
    pub pairing: HeadPairing,
    /// Elements of a query or key head.
    pub key_dim: u64,
    /// Elements of a value head.
    pub value_dim: u64,
    /// `[key_heads · key_dim, hidden]`.
    pub query: Projection,
    /// `[key_heads · key_dim, hidden]`.
    pub key: Projection,
    /// `[value_heads · value_dim, hidden]`.
    pub value: Projection,
    /// `[value_heads · value_dim, hidden]`.
    pub gate: DeltaInput,
    /// Function of the output of `gate`.
    pub gate_function: GateFunction,
    /// `[value_heads, hidden]`.
    pub beta: Projection,
    /// Upper bound of β: 2 allows negative eigenvalues of the state's transition.
    pub beta_scale: f64,
    /// `[value_heads, hidden]`, or `[value_heads · key_dim, hidden]` if each row of `S` decays
    /// separately.
    pub decay: DeltaInput,
    /// Whether each row of `S` decays separately.
    pub decays_by_row: bool,
    /// A number for each row of `decay`.
    pub decay_bias: Tensor,
    /// `[value_heads]`.
    pub decay_rate: DecayRate,
    /// Kernel size of the convolution, in positions.
    pub kernel: u64,
    /// `[2 · key_heads · key_dim + value_heads · value_dim, kernel]`, or with a further dimension
    /// of 1 before or after `kernel`; the rows may be those of several tensors, one after the
    /// other. Convolves queries, keys and values, before `SiLU`.
    pub convolution: Vec<Tensor>,
    /// `[value_dim]`, for each value head.
    pub norm: Norm,
    /// `[hidden, value_heads · value_dim]`.
    pub output: Projection,
}

/// Projection of the input of a delta net.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeltaInput {
    /// One matrix.
    Plain(Box<Projection>),
    /// Through a lower rank.
    LowRank(Box<LowRankInput>),
}

/// Low-rank projection of the input of a delta net: `up(down(x))`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LowRankInput {
    /// Number of rows of `down`.
    pub rank: u64,
    /// `[rank, hidden]`.
    pub down: Projection,
    /// As many rows as the plain projection, and `rank` columns.
    pub up: Projection,
}

impl DeltaInput {
    /// Returns the projections, in the order in which they are applied.
    pub fn projections(&self) -> impl Iterator<Item = &Projection> {
        let (first, second) = match self {
            Self::Plain(whole) => (whole.as_ref(), None),
            Self::LowRank(own) => (&own.down, Some(&own.up)),
        };
        std::iter::once(first).chain(second)
    }
}

/// Key head that a value head uses, if there are more value heads than key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadPairing {
    /// Consecutive value heads share a key head: value head `v` uses key head `v / share`.
    Grouped,
    /// Value head `v` uses key head `v % key_heads`.
    Alternating,
}

impl HeadPairing {
    /// Returns the key head of a value head.
    pub fn key_head(self, value_head: usize, [key_heads, value_heads]: [usize; 2]) -> usize {
        match self {
            Self::Grouped => value_head / (value_heads / key_heads),
            Self::Alternating => value_head % key_heads,
        }
    }
}

/// Decay rate of a delta net, in its stored form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayRate {
    /// Logarithm of the rate: `A_log` of folders.
    Log(Tensor),
    /// Negative rate: `ssm_a` of GGUF files.
    Negative(Tensor),
}

impl DecayRate {
    /// Returns the tensor, `[value_heads]`.
    pub fn tensor(&self) -> &Tensor {
        let (Self::Log(tensor) | Self::Negative(tensor)) = self;
        tensor
    }

    /// Returns the rate for a stored number.
    pub fn rate(&self, stored: f32) -> f32 {
        match self {
            Self::Log(_) => stored.exp(),
            Self::Negative(_) => -stored,
        }
    }
}

/// State space model after a short convolution (Mamba-2, arXiv 2405.21060).
///
/// The state of each head is a matrix `S` of `[state_dim, head_dim]`: `Δ = softplus(step +
/// step_bias)`, `S ← exp(-decay_rate · Δ) · S + write ⊗ Δ · input`, `y = Sᵀ · read + skip · input`.
/// The output is `output(norm(y · silu(gate)))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateSpace {
    /// Number of heads.
    pub heads: u64,
    /// Number of groups of consecutive heads that share `write` and `read`; divides `heads`.
    pub groups: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Elements of the state for each element of a head.
    pub state_dim: u64,
    /// `[heads · head_dim, hidden]`.
    pub gate: Projection,
    /// `[heads · head_dim, hidden]`.
    pub input: Projection,
    /// `[groups · state_dim, hidden]`; `B` in the paper.
    pub write: Projection,
    /// `[groups · state_dim, hidden]`; `C` in the paper.
    pub read: Projection,
    /// `[heads, hidden]`.
    pub step: Projection,
    /// Factors of the outputs of `gate`, `input`, `write`, `read` and `step`; `None`: all are 1.
    pub scales: Option<[f64; 5]>,
    /// `[heads]`.
    pub step_bias: Tensor,
    /// Bounds of Δ; the second is `None` if there is no upper bound.
    pub step_limits: (f64, Option<f64>),
    /// `[heads]`.
    pub decay_rate: DecayRate,
    /// `[heads]`: `D` in the paper.
    pub skip: Tensor,
    /// Kernel size of the convolution, in positions.
    pub kernel: u64,
    /// `[heads · head_dim + 2 · groups · state_dim, kernel]`, or with a further dimension of 1
    /// before or after `kernel`. Convolves `input`, `write` and `read`, before `SiLU`.
    pub convolution: Tensor,
    /// Bias of the convolution.
    pub convolution_bias: Option<Tensor>,
    /// Norm of the gated output.
    pub norm: Option<StateSpaceNorm>,
    /// `[hidden, heads · head_dim]`.
    pub output: Projection,
}

/// Norm of the output of a state space model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateSpaceNorm {
    /// `[heads · head_dim]`.
    pub norm: Norm,
    /// Number of groups of elements that are normalized separately.
    pub groups: u64,
    /// Whether the norm is applied before the gate, and not after it.
    pub precedes_gate: bool,
}

/// Selective state space model after a short convolution (Mamba, arXiv 2312.00752).
///
/// The state of each channel is a vector `s` of `state_dim` elements. With the convolved input `x`,
/// of which `step`, `write` and `read` are projections: `Δ = softplus(step)`,
/// `s ← exp(-decay_rate · Δ) · s + Δ · x · write`, `y = s · read + skip · x`. The output is
/// `output(y · silu(gate))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectiveScan {
    /// Number of channels.
    pub width: u64,
    /// Elements of the state of a channel.
    pub state_dim: u64,
    /// `[width, hidden]`.
    pub gate: Projection,
    /// `[width, hidden]`.
    pub input: Projection,
    /// Steps of the channels.
    pub step: ScanStep,
    /// Parts of the state that a token writes; `B` in the paper.
    pub write: ScanVector,
    /// Parts of the state that a token reads; `C` in the paper.
    pub read: ScanVector,
    /// `[width, state_dim]`.
    pub decay_rate: DecayRate,
    /// `[width]`: `D` in the paper.
    pub skip: Tensor,
    /// Kernel size of the convolution, in positions.
    pub kernel: u64,
    /// `[width, kernel]`, or with a further dimension of 1 before or after `kernel`. Convolves
    /// `input`, before `SiLU`.
    pub convolution: Tensor,
    /// `[width]`.
    pub convolution_bias: Option<Tensor>,
    /// `[hidden, width]`.
    pub output: Projection,
}

/// Low-rank projection of the steps of a selective state space model: `up(norm(down(x)))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScanStep {
    /// Number of rows of `down`.
    pub rank: u64,
    /// `[rank, width]`.
    pub down: Projection,
    /// `[rank]`.
    pub norm: Option<Norm>,
    /// `[width, rank]`.
    pub up: Projection,
}

/// Vector with an element for each element of a state, which all channels share: `norm(by(x))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScanVector {
    /// `[state_dim, width]`.
    pub by: Projection,
    /// `[state_dim]`.
    pub norm: Option<Norm>,
}

/// Linear attention with a constant decay (Lightning Attention, arXiv 2405.17381).
///
/// The state of each head is a matrix `S` of `[head_dim, head_dim]`: `S ← exp(-rate)·S + k ⊗ v`,
/// `o = Sᵀq`, with `q`, `k` and `v` behind an activation. The output is
/// `output(norm(o) · sigmoid(gate))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinearAttention {
    /// Number of heads.
    pub heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Factor of the decay rates. The rate of head `h`, counted from 1, is
    /// `decay_scale · 2^(-8h / heads)`.
    pub decay_scale: f64,
    /// `[heads · head_dim, hidden]`.
    pub query: Projection,
    /// `[heads · head_dim, hidden]`.
    pub key: Projection,
    /// `[heads · head_dim, hidden]`.
    pub value: Projection,
    /// Activation of the outputs of `query`, `key` and `value`.
    pub activation: Activation,
    /// `[heads · head_dim]`.
    pub norm: Norm,
    /// `[heads · head_dim, hidden]`.
    pub gate: Projection,
    /// `[hidden, heads · head_dim]`.
    pub output: Projection,
}

/// Gated short convolution (LFM2), per channel:
/// `output(after(x) · convolution(before(x) · input(x)))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortConv {
    /// Number of channels.
    pub width: u64,
    /// Kernel size, in positions.
    pub kernel: u64,
    /// `[width, hidden]`.
    pub before: Projection,
    /// `[width, hidden]`.
    pub after: Projection,
    /// `[width, hidden]`.
    pub input: Projection,
    /// `[width, kernel]`, or with a further dimension of 1 before or after `kernel`.
    pub convolution: Tensor,
    /// `[width]`.
    pub convolution_bias: Option<Tensor>,
    /// `[hidden, width]`.
    pub output: Projection,
}
