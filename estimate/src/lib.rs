//! How much memory a model takes, and which of its layers go to which device, before anything is loaded.
//!
//! Two estimates of the same question:
//!
//! - [`load`] restates the estimator of Ollama 0.13 for GGUF files: sizes of the KV cache and of the compute graph from
//!   hyper-parameters, a formula for each architecture, and an assignment of layers to devices. Clients and operators
//!   know its numbers; what it reports is the same to the byte.
//! - [`exact`] knows what Lode itself allocates: the bytes of each tensor, its own KV cache, the activations of a chunk.
//!   It assigns layers by the same rules.
//!
//! ```text
//! Model, Request ──▶ kv cache, graph sizes ──▶ Machine: devices less reserve ──▶ layout ⟲ ──▶ Estimate or Unfit
//! ```
//!
//! Everything here is pure: no device is asked, no file is read. All sizes are bytes. Arithmetic on numbers of foreign
//! files saturates instead of overflowing.

mod amount;
mod assign;
mod error;
pub mod exact;
mod graph;
mod hyper;
mod kv;
mod layout;
mod load;
mod model;

pub use assign::{Ask, Device, Requested, Share, assign_layers};
pub use error::Unfit;
pub use graph::{GraphSize, graph_size, has_formula};
pub use layout::{Fixed, Layout, LayoutRequest, Platform, System, layout};
pub use load::{DeviceUse, Estimate, LoadRequest, Machine, load};
pub use model::{MetadataValue, Model, Tensor, Weights};

/// What a model is to be loaded for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Tokens of one sequence.
    pub context: u64,
    /// Tokens that are computed at a time; at most `context`.
    pub batch: u64,
    /// Sequences at a time; each has `context` tokens.
    pub parallel: u64,
    /// How the KV cache keeps its elements: `f32`, `q8_0` and `q4_0` are known, everything else has two bytes.
    pub kv_type: String,
    /// Whether attention is computed without its scores in memory. Only gpt-oss's formula looks at it.
    pub flash_attention: bool,
}

#[cfg(test)]
mod tests;
