//! Mixers: parts of a layer that combine positions.

use serde::{Deserialize, Serialize};

use super::{Matrices, Norm, Projection, Tensor};
use crate::rope::Rope;

/// Part of a layer that combines positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Softmax attention with grouped heads.
    Attention(Box<Attention>),
    /// Multi-head latent attention.
    Latent(Box<Latent>),
    /// Gated delta rule.
    DeltaNet(Box<DeltaNet>),
    /// Gated short convolution.
    ShortConv(Box<ShortConv>),
    /// State space model with a decay for each head.
    StateSpace(Box<StateSpace>),
    /// State space model with a decay for each element of the state.
    SelectiveScan(Box<SelectiveScan>),
    /// No mixer: the layer has a feed-forward network only.
    None,
}

/// Softmax attention with grouped heads. The keys and values of a sequence are cached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Number of query heads.
    pub heads: u64,
    /// Number of key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Elements of a query or key head.
    pub head_dim: u64,
    /// Elements of a value head.
    pub value_dim: u64,
    /// Order of the elements of query and key heads.
    pub layout: HeadLayout,
    /// Factor of the scores.
    pub scale: f64,
    /// Bound of the scores: `soft_cap · tanh(score / soft_cap)`.
    pub soft_cap: Option<f64>,
    /// Number of positions to which a token attends, including its own; on each side if the model
    /// is not causal. `None` means all positions.
    pub window: Option<u64>,
    /// Rotary embedding; `None` if queries and keys have no position information.
    pub rope: Option<Rope>,
    /// `[heads · head_dim, hidden]`.
    pub query: Projection,
    /// `[kv_heads · head_dim, hidden]`.
    pub key: Projection,
    /// `[kv_heads · value_dim, hidden]`. May be the same as `key`; then it is computed once.
    pub value: Projection,
    /// Index of an earlier layer whose keys and values this layer reads. It then has no state, and
    /// `key`, `value` and their norms are those of that layer.
    pub reads_layer: Option<u64>,
    /// `[hidden, heads · value_dim]`.
    pub output: Projection,
    /// Bound to which queries, keys (both after their norms) and values are clipped: ± this value.
    pub clip: Option<f64>,
    /// Elements over which the norms of queries and keys are computed.
    pub normed: NormedPart,
    /// Whether `RoPE` is applied before the norms of queries and keys, and not after them.
    pub norms_follow_rope: bool,
    /// Norm of queries.
    pub query_norm: Option<Norm>,
    /// Norm of keys.
    pub key_norm: Option<Norm>,
    /// Norm of each value head.
    pub value_norm: Option<Norm>,
    /// Growth of queries with the position.
    pub query_growth: Option<QueryGrowth>,
    /// `[heads]`: a score that takes part in the softmax but contributes no value.
    pub sinks: Option<Tensor>,
    /// Gate of the attention output.
    pub gate: Option<AttentionGate>,
}

/// Gate of an attention output: a function of the projected input multiplies the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionGate {
    /// `[heads · value_dim, hidden]`, or `[heads, hidden]` if each head has one factor.
    pub projection: Projection,
    /// Whether each head has one factor, and not each element.
    pub per_head: bool,
    /// Function of the projection's output.
    pub function: GateFunction,
}

/// Function that makes a factor of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateFunction {
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `ln(1 + exp(x))`.
    Softplus,
    /// `x · sigmoid(x)`.
    Silu,
}

impl AttentionGate {
    /// Returns a gate with a sigmoid for each element.
    pub fn sigmoid(projection: Projection) -> Self {
        Self { projection, per_head: false, function: GateFunction::Sigmoid }
    }
}

/// Growth of queries with the position `p` of their token:
/// `1 + weight · ln(1 + floor((p + offset) / length))`. Llama 4 and Ministral 3 use it to keep
/// attention sharp in long sequences.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryGrowth {
    /// Weight of the logarithm.
    pub weight: f64,
    /// Number of positions after which the factor changes.
    pub length: f64,
    /// Constant that is added to positions.
    pub offset: f64,
}

impl QueryGrowth {
    /// Returns the factor at a position.
    pub fn factor(self, position: usize) -> f64 {
        1.0 + self.weight * ((position as f64 + self.offset) / self.length).floor().ln_1p()
    }
}

/// Elements over which the norms of queries and keys are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormedPart {
    /// Each head separately, with shared weights: `[head_dim]`.
    Head,
    /// All heads together: `[heads · head_dim]`.
    Width,
    /// Each head separately, with separate weights: `[heads, head_dim]`, or one tensor per head,
    /// with `{}` in its name for the index.
    EachHead,
}

/// Order of the elements of a head: determines the pairs that `RoPE` rotates. Layers without `RoPE`
/// store their rows in one of these orders too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadLayout {
    /// Element `i` is paired with `i + dim/2`, as Hugging Face stores weights.
    Half,
    /// Element `2i` is paired with `2i + 1`, as GGUF files of the llama family store q and k.
    Interleaved,
}

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). The cache holds one latent row of
/// `[rank + rope_dim]` per position, from which keys and values of all heads are computed. Heads
/// are `[nope_dim | rope_dim]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Number of heads.
    pub heads: u64,
    /// Elements of a head without rotary embedding.
    pub nope_dim: u64,
    /// Elements of a head to which `RoPE` is applied.
    pub rope_dim: u64,
    /// Elements of a value head.
    pub value_dim: u64,
    /// Elements of the latent row.
    pub rank: u64,
    /// Order of the rotated elements.
    pub layout: HeadLayout,
    /// Factor of the scores.
    pub scale: f64,
    /// Growth of queries with the position.
    pub query_growth: Option<QueryGrowth>,
    /// Rotary embedding.
    pub rope: Rope,
    /// Projection of the queries.
    pub query: LatentQuery,
    /// `[rank + rope_dim, hidden]`.
    pub down: Projection,
    /// Norm of the first `rank` elements of the output of `down`.
    pub norm: Norm,
    /// `[nope_dim, rank]` for each head.
    pub keys: Matrices,
    /// `[value_dim, rank]` for each head.
    pub values: Matrices,
    /// `[hidden, heads · value_dim]`.
    pub output: Projection,
}

/// Projection of the queries of latent attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatentQuery {
    /// `[heads · (nope_dim + rope_dim), hidden]`.
    Plain(Box<Projection>),
    /// `up(norm(down(x)))`.
    LowRank(Box<LowRankQuery>),
}

/// Low-rank projection of queries: `up(norm(down(x)))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LowRankQuery {
    /// Number of rows of `down`.
    pub rank: u64,
    /// `[rank, hidden]`.
    pub down: Projection,
    /// `[rank]`.
    pub norm: Norm,
    /// `[heads · (nope_dim + rope_dim), rank]`.
    pub up: Projection,
}

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

impl HeadLayout {
    /// All layouts.
    pub const ALL: [Self; 2] = [Self::Half, Self::Interleaved];

    /// Returns the name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Half => "half",
            Self::Interleaved => "interleaved",
        }
    }

    /// Parses the name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.name() == name)
    }
}
