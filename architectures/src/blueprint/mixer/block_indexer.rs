//! Indexers that choose blocks of positions.

use serde::{Deserialize, Serialize};

use crate::blueprint::{Norm, Projection};

/// Chooses the blocks of positions to which a token attends. Its queries and keys are rotated as
/// those of attention, as many elements of each head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockIndexer {
    /// Number of heads.
    pub heads: u64,
    /// Elements of a query head and of the key.
    pub head_dim: u64,
    /// Number of positions of a block; the first block begins at the first position.
    pub block: u64,
    /// Number of blocks that are chosen.
    pub count: u64,
    /// Rule of the choice.
    pub rule: BlockRule,
    /// `[heads · head_dim, hidden]`.
    pub query: Projection,
    /// `[head_dim, hidden]`.
    pub key: Projection,
    /// `[head_dim]`: norm of each query head, before `RoPE`.
    pub query_norm: Norm,
    /// `[head_dim]`: norm of the keys, before `RoPE`.
    pub key_norm: Norm,
}

/// Rule by which blocks are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockRule {
    /// By `Σ relu(query[h] · key)` over the heads. The key of a block is the mean of the keys of
    /// its positions, then normalized and rotated by its first position. Positions behind the last
    /// complete block are seen, too.
    Mean,
    /// By the greatest `query[h] · key` of the positions of a block that a token sees, for each
    /// head separately; a head chooses for as many consecutive heads of attention as there are for
    /// each.
    Greatest {
        /// Number of blocks, up to the token's own, that are always chosen and count among them.
        local: u64,
    },
}
