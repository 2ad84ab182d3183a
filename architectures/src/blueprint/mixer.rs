//! Mixers: parts of a layer that combine positions.

mod attention;
mod block_indexer;
mod compressed;
mod position_bias;
mod recurrent;

use serde::{Deserialize, Serialize};

pub use attention::{
    Attention, AttentionGate, GateFunction, HeadLayout, Indexer, Latent, LatentQuery, LowRankQuery, NormedPart,
    QueryGrowth,
};
pub use block_indexer::{BlockIndexer, BlockRule};
pub use compressed::{CompressedAttention, CompressedEntries, Compression, EntryIndexer};
pub use position_bias::{Buckets, PositionBias, Slopes};
pub use recurrent::{
    DecayRate, DeltaInput, DeltaNet, HeadPairing, LinearAttention, LowRankInput, ScanStep, ScanVector, SelectiveScan,
    ShortConv, StateSpace, StateSpaceNorm,
};

/// Part of a layer that combines positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Softmax attention with grouped heads.
    Attention(Box<Attention>),
    /// Multi-head latent attention.
    Latent(Box<Latent>),
    /// Attention to a window and to compressed entries.
    Compressed(Box<CompressedAttention>),
    /// Gated delta rule.
    DeltaNet(Box<DeltaNet>),
    /// Gated short convolution.
    ShortConv(Box<ShortConv>),
    /// State space model with a decay for each head.
    StateSpace(Box<StateSpace>),
    /// State space model with a decay for each element of the state.
    SelectiveScan(Box<SelectiveScan>),
    /// Linear attention with a constant decay.
    LinearAttention(Box<LinearAttention>),
    /// No mixer: the layer has a feed-forward network only.
    None,
}

impl Mixer {
    /// True if nothing is added to the scores of attention but masks, no indexer chooses the
    /// positions, and there are no compressed entries.
    pub fn has_plain_scores(&self) -> bool {
        match self {
            Self::Attention(own) => own.position_bias.is_none() && own.indexer.is_none(),
            Self::Latent(own) => own.indexer.is_none(),
            Self::Compressed(own) => own.entries.is_none(),
            _ => true,
        }
    }

    /// Returns the largest number of heads for which scores are computed at a time: of attention or
    /// of its indexer.
    pub fn score_heads(&self) -> u64 {
        match self {
            Self::Attention(own) => own.heads.max(own.indexer.as_ref().map_or(0, |indexer| indexer.heads)),
            Self::Latent(own) => own.heads.max(own.indexer.as_ref().map_or(0, |indexer| indexer.heads)),
            Self::Compressed(own) => own.heads.max(own.indexer().map_or(0, |indexer| indexer.heads)),
            _ => self.heads(),
        }
    }

    /// Returns the indexer that chooses blocks, if the mixer has one.
    pub fn block_indexer(&self) -> Option<&BlockIndexer> {
        match self {
            Self::Attention(own) => own.indexer.as_deref(),
            _ => None,
        }
    }

    /// Returns the compressions to entries, each with the number of elements of an entry: of
    /// attention, and of its indexer.
    pub fn compressions(&self) -> impl Iterator<Item = (&Compression, u64)> {
        let own = match self {
            Self::Compressed(own) => own.entries.as_ref().map(|entries| (own, entries)),
            _ => None,
        };
        own.into_iter().flat_map(|(own, entries)| {
            let indexer = entries.indexer.as_ref().map(|indexer| (&indexer.compression, indexer.head_dim));
            std::iter::once((&entries.compression, own.head_dim)).chain(indexer)
        })
    }

    /// Returns the number of attention heads; 0 if the mixer is not softmax attention.
    pub fn heads(&self) -> u64 {
        match self {
            Self::Attention(own) => own.heads,
            Self::Latent(own) => own.heads,
            Self::Compressed(own) => own.heads,
            Self::DeltaNet(_)
            | Self::ShortConv(_)
            | Self::StateSpace(_)
            | Self::SelectiveScan(_)
            | Self::LinearAttention(_)
            | Self::None => 0,
        }
    }
}
