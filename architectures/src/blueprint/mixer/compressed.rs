//! Softmax attention to a window of positions, and to entries that compress several positions each
//! (DeepSeek-V4).

use serde::{Deserialize, Serialize};

use super::attention::{HeadLayout, LowRankQuery};
use crate::blueprint::{Matrices, Norm, Projection, Tensor};
use crate::rope::Rope;

/// Softmax attention with one key head, whose keys are the values too. `RoPE` is applied to the
/// last `rope_dim` elements of heads; those of the output are rotated back by the position of the
/// query.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompressedAttention {
    /// Number of query heads.
    pub heads: u64,
    /// Elements of a query head, and of the key.
    pub head_dim: u64,
    /// Number of rotated elements.
    pub rope_dim: u64,
    /// Order of the rotated elements.
    pub layout: HeadLayout,
    /// Factor of the scores.
    pub scale: f64,
    /// Number of positions to which a token attends, including its own.
    pub window: u64,
    /// Rotary embedding.
    pub rope: Rope,
    /// `[heads · head_dim, hidden]`: projection of the queries.
    pub query: LowRankQuery,
    /// `[head_dim]`: norm of each query head, before `RoPE`.
    pub query_norm: Norm,
    /// `[head_dim, hidden]`.
    pub key: Projection,
    /// `[head_dim]`: norm of the key, before `RoPE`.
    pub key_norm: Norm,
    /// `[heads]`: a score that takes part in the softmax but contributes no value.
    pub sinks: Tensor,
    /// Number of groups of consecutive heads, each with a projection of its own.
    pub groups: u64,
    /// Number of rows of the projection of a group.
    pub rank: u64,
    /// `[rank, heads / groups · head_dim]` for each group.
    pub group_outputs: Matrices,
    /// `[hidden, groups · rank]`.
    pub output: Projection,
    /// The entries to which tokens attend besides the window; `None` if there are none.
    pub entries: Option<Box<CompressedEntries>>,
}

impl CompressedAttention {
    /// Returns the indexer that chooses entries, if there is one.
    pub fn indexer(&self) -> Option<&EntryIndexer> {
        self.entries.as_ref()?.indexer.as_ref()
    }
}

/// Entries of a sequence, and the choice among them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompressedEntries {
    /// Makes the entries, of `head_dim` elements.
    pub compression: Compression,
    /// Chooses the entries to which a token attends; `None`: all that are complete.
    pub indexer: Option<EntryIndexer>,
}

/// Compresses segments of positions to one entry each. An entry is `Σ softmax(gate + bias) · value`
/// over the positions of its segment, separately for each element; then it is normalized, and
/// rotated by the first position of the segment. A token sees the entries of segments that are
/// complete at its position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compression {
    /// Number of positions of a segment; the first segment begins at the first position.
    pub every: u64,
    /// Whether an entry also compresses the segment before its own. Then values, gates and biases
    /// are twice as wide: the first half is for the next segment's entry, the second for the own.
    pub overlaps: bool,
    /// `[width, hidden]`, or `[2 · width, hidden]` if segments overlap.
    pub value: Projection,
    /// As many rows as `value`.
    pub gate: Projection,
    /// `[every, width]`, or `[every, 2 · width]` if segments overlap.
    pub bias: Tensor,
    /// `[width]`.
    pub norm: Norm,
}

impl Compression {
    /// Returns the number of positions from which an entry is made.
    pub fn reach(&self) -> u64 {
        if self.overlaps { self.every.saturating_mul(2) } else { self.every }
    }

    /// Returns the number of elements of a value, if an entry has `width` elements.
    pub fn value_width(&self, width: u64) -> u64 {
        if self.overlaps { width.saturating_mul(2) } else { width }
    }
}

/// Chooses the entries to which a token attends: those with the greatest
/// `Σ weights[h] · relu(query[h] · entry)` over its heads, with entries of its own for the same
/// segments. The last `rope_dim` elements of queries and entries are rotated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryIndexer {
    /// Number of heads.
    pub heads: u64,
    /// Elements of a query head and of an entry.
    pub head_dim: u64,
    /// Number of entries that are chosen.
    pub count: u64,
    /// `[heads · head_dim, rank of queries]`: projection of the normalized low-rank row of queries.
    pub query: Projection,
    /// `[heads, hidden]`.
    pub weights: Projection,
    /// Makes the entries, of `head_dim` elements.
    pub compression: Compression,
}
