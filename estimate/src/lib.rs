//! Estimates, before a load, the memory that a model needs and the device of each layer.
//!
//! Two estimates answer the same question:
//!
//! - [`load`] reimplements the estimator of Ollama 0.13 for GGUF files. It computes the sizes of
//!   the KV cache and of the compute graph from hyper-parameters, with one formula per
//!   architecture, and assigns layers to devices. Clients and operators know its numbers; its
//!   results equal Ollama's to the byte.
//! - [`exact`] computes what Lode itself allocates: the bytes of each tensor, its own KV cache, and
//!   the activations of a chunk. It assigns layers by the same rules.
//!
//! ```text
//! Model, Request ──▶ kv cache, graph sizes ──▶ Machine: devices less reserve
//!                                               ──▶ layout ⟲ ──▶ Estimate or Unfit
//! ```
//!
//! The code here is pure: it queries no device and reads no file. All sizes are in bytes.
//! Arithmetic on numbers from untrusted files saturates instead of overflowing.

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
pub use load::{DeviceUse, Estimate, EstimateRequest, Machine, ollama_estimate};
pub use model::{MetadataValue, Model, Tensor, Weights};

/// The settings that a model is to be loaded with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Context length of one sequence, in tokens.
    pub context: u64,
    /// Tokens that are computed in one pass; at most `context`.
    pub batch: u64,
    /// Number of parallel sequences; each has `context` tokens.
    pub parallel: u64,
    /// Element type of the KV cache. `f32`, `q8_0` and `q4_0` are known; every other type counts as
    /// two bytes.
    pub kv_type: String,
    /// Whether flash attention is used, which keeps no attention scores in memory. Only the formula
    /// of gpt-oss depends on it.
    pub flash_attention: bool,
}

#[cfg(test)]
mod tests;
