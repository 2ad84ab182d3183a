//! What mixes positions.

use serde::{Deserialize, Serialize};

use super::{Matrices, Norm, Projection, Tensor};
use crate::rope::Rope;

/// What mixes positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Softmax attention with grouped heads.
    Attention(Box<Attention>),
    /// Multi-head latent attention.
    Latent(Box<Latent>),
    /// A gated delta rule.
    DeltaNet(Box<DeltaNet>),
    /// A gated short convolution.
    ShortConv(Box<ShortConv>),
}

/// Softmax attention with grouped heads. A sequence's keys and values are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Elements of a query or key head.
    pub head_dim: u64,
    /// Elements of a value head.
    pub value_dim: u64,
    /// How the elements of query and key heads lie.
    pub layout: HeadLayout,
    /// Scores are multiplied by it.
    pub scale: f64,
    /// Scores stay within it: `soft_cap · tanh(score / soft_cap)`.
    pub soft_cap: Option<f64>,
    /// How far a token looks, its own position included; to both sides where the model is not causal. `None`: everywhere.
    pub window: Option<u64>,
    /// How positions are told apart; `None` where they are not.
    pub rope: Option<Rope>,
    /// `[heads · head_dim, hidden]`.
    pub query: Projection,
    /// `[kv_heads · head_dim, hidden]`.
    pub key: Projection,
    /// `[kv_heads · value_dim, hidden]`.
    pub value: Projection,
    /// `[hidden, heads · value_dim]`.
    pub output: Projection,
    /// Queries and keys, behind their norms, and values are clipped to ± this.
    pub clip: Option<f64>,
    /// What the norms are of.
    pub normed: NormedPart,
    /// Of queries, before they are rotated.
    pub query_norm: Option<Norm>,
    /// Of keys, before they are rotated.
    pub key_norm: Option<Norm>,
    /// `[heads]`: a score that takes its share of the softmax and mixes nothing.
    pub sinks: Option<Tensor>,
    /// `[heads · value_dim, hidden]`: what is mixed is multiplied by its sigmoid.
    pub gate: Option<Projection>,
}

/// What the norms of queries and keys are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormedPart {
    /// Each head: `[head_dim]`.
    Head,
    /// All heads together: `[heads · head_dim]`.
    Width,
    /// Each head, with weights of its own: `[heads, head_dim]`, or a tensor for each, with `{}` in its name for the head.
    EachHead,
}

/// Which elements of a head form the pairs that `RoPE` rotates. Layers without `RoPE` have their rows in such an order
/// too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadLayout {
    /// Element `i` with `i + dim/2`, as Hugging Face stores weights.
    Half,
    /// Element `2i` with `2i + 1`, as GGUF files of the llama family store q and k.
    Interleaved,
}

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). Of a sequence the latent rows are kept, `[rank + rope_dim]` each,
/// from which keys and values of all heads come. Heads are `[nope_dim | rope_dim]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Heads.
    pub heads: u64,
    /// Elements of a head that see no position.
    pub nope_dim: u64,
    /// Elements of a head that are rotated.
    pub rope_dim: u64,
    /// Elements of a value head.
    pub value_dim: u64,
    /// Elements of the latent row.
    pub rank: u64,
    /// How the rotated elements lie.
    pub layout: HeadLayout,
    /// Scores are multiplied by it.
    pub scale: f64,
    /// How positions are told apart.
    pub rope: Rope,
    /// Where queries come from.
    pub query: LatentQuery,
    /// `[rank + rope_dim, hidden]`.
    pub down: Projection,
    /// Of the first `rank` elements of what `down` gives.
    pub norm: Norm,
    /// For each head `[nope_dim, rank]`.
    pub keys: Matrices,
    /// For each head `[value_dim, rank]`.
    pub values: Matrices,
    /// `[hidden, heads · value_dim]`.
    pub output: Projection,
}

/// Where the queries of latent attention come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatentQuery {
    /// `[heads · (nope_dim + rope_dim), hidden]`.
    Plain(Box<Projection>),
    /// `up(norm(down(x)))`.
    LowRank(Box<LowRankQuery>),
}

/// Queries by way of fewer elements: `up(norm(down(x)))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LowRankQuery {
    /// Rows of `down`.
    pub rank: u64,
    /// `[rank, hidden]`.
    pub down: Projection,
    /// `[rank]`.
    pub norm: Norm,
    /// `[heads · (nope_dim + rope_dim), rank]`.
    pub up: Projection,
}

/// A gated delta rule behind a short convolution (Gated `DeltaNet`, arXiv 2412.06464). For each value head a matrix
/// `S` of `[key_dim, value_dim]` is kept: `S ← exp(g)·S`, `S ← S + k ⊗ β·(v - Sᵀk)`, `o = Sᵀq`, with
/// `g = -decay_rate · softplus(decay + decay_bias)` and `β = sigmoid(beta)`. Queries and keys are divided by their length,
/// queries by the root of `key_dim` too. What comes out is `norm(o) · silu(gate)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaNet {
    /// Query and key heads; divides `value_heads`.
    pub key_heads: u64,
    /// Value heads.
    pub value_heads: u64,
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
    pub gate: Projection,
    /// `[value_heads, hidden]`.
    pub beta: Projection,
    /// `[value_heads, hidden]`.
    pub decay: Projection,
    /// `[value_heads]`.
    pub decay_bias: Tensor,
    /// `[value_heads]`.
    pub decay_rate: DecayRate,
    /// Positions that the convolution sees.
    pub kernel: u64,
    /// `[2 · key_heads · key_dim + value_heads · value_dim, kernel]`, also with a 1 in between or behind: of queries, keys and values, before `SiLU`.
    pub convolution: Tensor,
    /// `[value_dim]`, of each value head.
    pub norm: Norm,
    /// `[hidden, value_heads · value_dim]`.
    pub output: Projection,
}

/// How fast a delta net forgets, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayRate {
    /// Its logarithm: `A_log` of folders.
    Log(Tensor),
    /// Its negative: `ssm_a` of GGUF files.
    Negative(Tensor),
}

impl DecayRate {
    /// `[value_heads]`.
    pub fn tensor(&self) -> &Tensor {
        let (Self::Log(tensor) | Self::Negative(tensor)) = self;
        tensor
    }

    /// The rate that a stored number means.
    pub fn rate(&self, stored: f32) -> f32 {
        match self {
            Self::Log(_) => stored.exp(),
            Self::Negative(_) => -stored,
        }
    }
}

/// A gated short convolution (LFM2): `output(after(x) · convolution(before(x) · input(x)))`, channel by channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortConv {
    /// Channels.
    pub width: u64,
    /// Positions that it sees.
    pub kernel: u64,
    /// `[width, hidden]`.
    pub before: Projection,
    /// `[width, hidden]`.
    pub after: Projection,
    /// `[width, hidden]`.
    pub input: Projection,
    /// `[width, kernel]`, also with a 1 in between or behind.
    pub convolution: Tensor,
    /// `[width]`.
    pub convolution_bias: Option<Tensor>,
    /// `[hidden, width]`.
    pub output: Projection,
}

impl HeadLayout {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Half, Self::Interleaved];

    /// The name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Half => "half",
            Self::Interleaved => "interleaved",
        }
    }

    /// Reads the name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.name() == name)
    }
}
