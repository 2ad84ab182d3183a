//! Mixers: parts of a layer that combine positions.

mod attention;
mod recurrent;

use serde::{Deserialize, Serialize};

pub use attention::{
    Attention, AttentionGate, GateFunction, HeadLayout, Latent, LatentQuery, LowRankQuery, NormedPart, QueryGrowth,
};
pub use recurrent::{
    DecayRate, DeltaInput, DeltaNet, HeadPairing, LowRankInput, ScanStep, ScanVector, SelectiveScan, ShortConv,
    StateSpace, StateSpaceNorm,
};

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
