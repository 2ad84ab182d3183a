//! Softmax attention, with grouped heads or with latents.

use serde::{Deserialize, Serialize};

use super::block_indexer::BlockIndexer;
use super::position_bias::PositionBias;
use crate::blueprint::{Matrices, Norm, Projection, Tensor};
use crate::rope::Rope;

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
    /// Number of positions of a chunk: a token attends only to positions of its own chunk, which
    /// begins at a multiple of this number. `None` if there are no chunks.
    pub chunk: Option<u64>,
    /// Rotary embedding; `None` if queries and keys have no position information.
    pub rope: Option<Rope>,
    /// Rotary embedding of the elements behind the ones of `rope`; only in towers.
    pub second_rope: Option<Rope>,
    /// Whether the rows of a picture see only those before them, although the rows of pictures see
    /// each other in other layers.
    pub has_causal_pictures: bool,
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
    /// `[heads · value_dim]`: norm of the input of `output`.
    pub output_norm: Option<Norm>,
    /// Growth of queries with the position.
    pub query_growth: Option<QueryGrowth>,
    /// Bias of the scores by the distance of tokens.
    pub position_bias: Option<PositionBias>,
    /// `[heads]`: a score that takes part in the softmax but contributes no value.
    pub sinks: Option<Tensor>,
    /// Gate of the attention output.
    pub gate: Option<AttentionGate>,
    /// Chooses the blocks of positions to which a token attends; `None`: all that it sees.
    pub indexer: Option<Box<BlockIndexer>>,
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
    /// Chooses the positions to which a token attends; `None`: all earlier positions.
    pub indexer: Option<Box<Indexer>>,
}

/// Chooses the positions to which a token attends (DeepSeek-V3.2): those with the greatest
/// `Σ weights[h] · relu(query[h] · key)` over its heads. Its keys are kept behind the latent rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Indexer {
    /// Number of heads.
    pub heads: u64,
    /// Elements of a query head and of the key. The first `rope_dim` are rotated.
    pub head_dim: u64,
    /// Order of the rotated elements.
    pub layout: HeadLayout,
    /// Number of positions that are chosen.
    pub count: u64,
    /// `[heads · head_dim, rank of queries]`: projection of the normalized low-rank row of queries.
    pub query: Projection,
    /// `[head_dim, hidden]`.
    pub key: Projection,
    /// Norm of the key, before `RoPE`.
    pub key_norm: Norm,
    /// `[heads, hidden]`.
    pub weights: Projection,
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
