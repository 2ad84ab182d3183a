//! What a model would take of memory, and where: the document of `POST /api/lode/plan`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/plan`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlanRequest {
    /// Name of the model. Where it is not here its registry is asked for the manifest and the config.
    pub model: String,
    /// Free memory of each device, in bytes; none for the CPU alone.
    pub gpus: Vec<u64>,
    /// Tokens of a sequence; without it the daemon's default. No more than the model was made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_ctx: Option<u64>,
    /// Sequences at a time; without it the daemon's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_parallel: Option<u64>,
    /// How the KV cache keeps its elements: `f32`, `f16`, `bf16` or `q8_0`; without it the daemon's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_type: Option<String>,
    /// Talk to the registry without TLS.
    pub insecure: bool,
}

/// Where a plan's facts are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PlanSource {
    /// The model is in the store.
    Store,
    /// The model is at its registry; no tensor was fetched.
    Registry,
}

/// Answer of `POST /api/lode/plan`. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanResponse {
    /// The model's name, complete.
    pub model: String,
    /// Digest of its manifest.
    pub digest: String,
    /// Where the facts are from.
    pub source: PlanSource,
    /// As GGUF calls it.
    pub architecture: String,
    /// Tokens of a sequence.
    pub context: u64,
    /// Sequences at a time.
    pub parallel: u64,
    /// How the KV cache keeps its elements.
    pub kv_cache_type: String,
    /// By Ollama's formulas.
    pub ollama: PlannedMemory,
    /// What Lode allocates itself; absent where it cannot run the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<PlannedMemory>,
    /// What is to be known about the numbers, for people.
    pub notes: Vec<String>,
}

/// What a model takes, by one of the estimates. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedMemory {
    /// Layers, the output among them.
    pub layers: u64,
    /// Those of them that are on devices.
    pub layers_on_devices: u64,
    /// Weights, wherever they are.
    pub weights: u64,
    /// KV cache of all sequences, wherever it is.
    pub kv_cache: u64,
    /// Compute graph, or activations, wherever they are.
    pub graph: u64,
    /// What the process takes beside them.
    pub process: u64,
    /// Set aside on every device before layers are assigned; in no sum.
    pub reserve: u64,
    /// Bytes on devices.
    pub on_devices: u64,
    /// Bytes in system memory.
    pub in_system: u64,
    /// Those of them that are not shared with others who use the same files.
    pub private: u64,
    /// All bytes.
    pub total: u64,
    /// What each device holds, in the order of the request.
    pub devices: Vec<PlannedDevice>,
}

/// What a device holds. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedDevice {
    /// Free memory.
    pub free: u64,
    /// Layers, the output among them.
    pub layers: u64,
    /// Weights.
    pub weights: u64,
    /// KV cache.
    pub kv_cache: u64,
    /// Compute graph, or activations.
    pub graph: u64,
    /// All of it.
    pub total: u64,
}
