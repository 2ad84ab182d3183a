//! Memory plan of a model: the document of `POST /api/lode/plan`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/plan`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlanRequest {
    /// Name of the model. If the model is not in the store, the daemon requests manifest and config
    /// from its registry.
    pub model: String,
    /// Free memory of each device in bytes; empty for CPU only.
    pub gpus: Vec<u64>,
    /// Context length in tokens, at most the context that the model was trained for. The default is
    /// the daemon's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_ctx: Option<u64>,
    /// Number of parallel sequences. The default is the daemon's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_parallel: Option<u64>,
    /// Element type of the KV cache: `f32`, `f16`, `bf16` or `q8_0`. The default is the daemon's
    /// setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_type: Option<String>,
    /// Connect to the registry without TLS.
    pub insecure: bool,
}

/// Source of the facts in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PlanSource {
    /// The model is in the store.
    Store,
    /// The model is at its registry; no tensor data was fetched.
    Registry,
}

/// Response of `POST /api/lode/plan`. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanResponse {
    /// Full name of the model.
    pub model: String,
    /// Digest of its manifest.
    pub digest: String,
    /// Source of the facts.
    pub source: PlanSource,
    /// Name of the architecture in GGUF.
    pub architecture: String,
    /// Context length in tokens.
    pub context: u64,
    /// Number of parallel sequences.
    pub parallel: u64,
    /// Element type of the KV cache.
    pub kv_cache_type: String,
    /// Estimate by Ollama's formulas.
    pub ollama: PlannedMemory,
    /// Memory that Lode allocates; absent if Lode cannot run the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<PlannedMemory>,
    /// Human-readable notes about the numbers.
    pub notes: Vec<String>,
}

/// Memory of a model by one of the estimates. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedMemory {
    /// Number of layers, including the output layer.
    pub layers: u64,
    /// Number of layers on devices.
    pub layers_on_devices: u64,
    /// Weights, on devices and in system memory.
    pub weights: u64,
    /// KV cache of all sequences, on devices and in system memory.
    pub kv_cache: u64,
    /// Compute graph or activations, on devices and in system memory.
    pub graph: u64,
    /// Other memory of the process.
    pub process: u64,
    /// Memory that is reserved on every device before layers are assigned. No sum includes it.
    pub reserve: u64,
    /// Total memory on devices.
    pub on_devices: u64,
    /// Total system memory.
    pub in_system: u64,
    /// The part of `in_system` that is not shared with other processes that map the same files.
    pub private: u64,
    /// Total memory.
    pub total: u64,
    /// The devices, in the order of the request.
    pub devices: Vec<PlannedDevice>,
}

/// Memory of a model on one device. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedDevice {
    /// Free memory.
    pub free: u64,
    /// Number of layers, including the output layer.
    pub layers: u64,
    /// Weights.
    pub weights: u64,
    /// KV cache.
    pub kv_cache: u64,
    /// Compute graph or activations.
    pub graph: u64,
    /// Total.
    pub total: u64,
}
