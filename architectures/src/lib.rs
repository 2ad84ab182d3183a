//! What models compute: a file per family reads what a source says of itself and gives a [`Blueprint`].
//!
//! ```text
//! config.json ──┐  families/*.rs: numbers, names     ┌─▶ runner: decoder
//! GGUF header ──┼─▶ describe ─▶ Architecture ────────┼─▶ scheduler: exact estimate
//! tensor names ─┘               family + Blueprint   └─▶ show, plan, exports
//! ```
//!
//! Everything here is pure: documents come in as bytes or parsed headers, values go out.
//!
//! # Invariants
//! - A [`Blueprint`] names no architecture. Whoever computes with it needs nothing else.
//! - There is one way for the numbers of a blueprint to come from elsewhere, [`Blueprint`]'s `Deserialize`, and it checks
//!   them.
//! - Canonical names are Hugging Face's. A better table of names changes no stored byte: names in blobs are the source's.
//! - What is derived by this crate carries [`VERSION`]; a build with other sources derives it anew.

mod adapted;
pub mod blueprint;
mod config_json;
mod dense;
mod error;
pub mod exchange;
mod experts;
mod families;
mod family;
mod gguf_keys;
mod harmless_keys;
mod heads;
mod keys_read;
pub mod names;
mod names_of_0_1;
mod plain;
mod rope;
mod sizes;
mod tensor_names;

pub use adapted::{Adaptable, AdaptedName};
pub use blueprint::{
    Activation, Attention, Blueprint, DecayRate, DeltaNet, Embedding, Experts, Ffn, Gated, Groups, HeadLayout, Latent,
    LatentQuery, Layer, LayerState, LowRankQuery, Matrices, Mixer, Norm, NormKind, NormedPart, Output, Plain,
    Positions, Projection, Reads, Residual, Router, RouterScores, Rows, Score, Scorer, ScorerActivation, ScorerDense,
    ScorerInput, SharedExpert, ShortConv, Tensor, TokenTypes, View,
};
pub use error::Error;
pub use family::{Architecture, Document, Fact, Family, Fields, GgufForm, HuggingFaceForm, describe, unread_keys};
pub use harmless_keys::is_harmless as is_harmless_key;
pub use names_of_0_1::source_name;
pub use rope::{Divisors, Rope, RopeScaling, Switch};
pub use sizes::Sizes;
pub use tensor_names::TensorNames;

/// Names the sources of this crate and of `formats`. Every remembered derivation carries it.
pub const VERSION: &str = env!("LODE_SOURCES_VERSION");
