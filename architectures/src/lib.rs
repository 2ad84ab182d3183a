//! Architectures of models: one file per family reads the description in a source and returns a
//! [`Blueprint`].
//!
//! ```text
//! config.json ──┐  families/*.rs: numbers, names     ┌─▶ runner: decoder
//! GGUF header ──┼─▶ describe ─▶ Architecture ────────┼─▶ scheduler: exact estimate
//! tensor names ─┘               family + Blueprint   └─▶ show, plan, exports
//! ```
//!
//! The crate is pure: the input is bytes of documents or parsed headers, the output is values.
//!
//! # Invariants
//! - A [`Blueprint`] does not name an architecture. Code that computes with it needs no other
//!   description.
//! - Blueprints from outside enter only through [`Blueprint`]'s `Deserialize`, which checks them.
//! - Canonical names are Hugging Face's. A better table of names does not change stored bytes,
//!   because blobs contain the source's names.
//! - Values that this crate derives carry [`VERSION`]; a build with other sources derives them
//!   again.

mod adapted;
pub mod blueprint;
#[cfg(test)]
mod class_defaults;
mod config_json;
mod dense;
mod describe;
mod encoder;
mod error;
pub mod exchange;
mod experts;
mod families;
mod family;
mod gguf_keys;
mod harmless_keys;
mod heads;
mod keys_read;
mod name_tables;
pub mod names;
mod names_of_0_1;
mod picture_settings;
mod plain;
mod rope;
mod selective_scan;
mod sentence_modules;
mod sizes;
mod state_space;
mod tensor_names;
mod towers;
mod unsupported;

pub use adapted::AdaptedName;
pub use blueprint::{
    Activation, Adaptable, Attention, AttentionGate, BalancedConnections, BalancedStreams, BlockIndexer, BlockJoin,
    BlockRule, Blueprint, Branch, Clamps, ClassRow, CompressedAttention, CompressedEntries, Compression,
    ConnectedStreams, DecayRate, DeepProjector, DeltaInput, DeltaNet, EmbedderLayer, Embedding, EntryIndexer,
    ExpertLatent, Experts, Ffn, GateFunction, Gated, Groups, HeadLayout, HeadPairing, Indexer, LargeTiles, Latent,
    LatentQuery, Layer, LayerEmbeddings, LayerState, LayerStreams, LayerTable, LearnedResidual, LinearAttention,
    LowRankQuery, Matrices, Mixer, Network, NgramEmbedding, NgramInput, Norm, NormKind, NormedPart, Output, OutputHead,
    PatchOrder, PatchPositions, PatchWindows, PictureFilter, PictureInput, PictureResize, PictureText, Pictures, Plain,
    PooledActivation, PositionBias, PositionTable, Positions, PredictedStreams, Projection, Projector, ProjectorLayer,
    QueryGrowth, Reads, Residual, Router, RouterScores, Rows, Score, Scorer, ScorerDense, ScorerInput, SecondMixer,
    SelectiveScan, SharedExpert, ShortConv, SquareFit, Standardization, StateSpace, StateSpaceNorm, StreamConnection,
    StreamConnections, StreamMix, StreamNumbers, StreamPrediction, Streams, Tensor, TileText, TokenInput, TokenTypes,
    Tower, View, Xielu,
};
pub use describe::{describe, unread_keys};
pub use error::Error;
pub use family::{Architecture, Document, Fact, Family, Fields, GgufForm, HuggingFaceForm};
pub use harmless_keys::is_harmless as is_harmless_key;
pub use names_of_0_1::source_name;
pub use picture_settings::picture_input;
pub use rope::{Axis, Divisors, Rope, RopeAxes, RopeScaling, Switch};
pub use sentence_modules::{DenseModule, MODULES, SentenceModule, dense_modules, module_folders, sentence_modules};
pub use sizes::Sizes;
pub use tensor_names::TensorNames;
pub use towers::{PICTURE_DOCUMENTS, PatchChange, ProjectorFile, ProjectorTensor};

/// Version of the sources of this crate and of `formats`. Every stored derivation carries it.
pub const VERSION: &str = env!("LODE_SOURCES_VERSION");
