//! What runs at the moment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer of `GET /api/lode/running`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunningResponse {
    /// The loaded models, by name.
    pub models: Vec<RunningModel>,
    /// Requests that wait for a model.
    pub waiting: u64,
    /// Requests that use a model.
    pub active: u64,
    /// Requests that may wait at a time.
    pub queue: u64,
    /// Models that may be loaded at a time.
    pub most_loaded: u64,
    /// Bytes that loaded models may need together; absent where there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// Loads that were begun since the start.
    pub loads: u64,
    /// Models that were unloaded to make room.
    pub evictions: u64,
    /// Runners that ended unexpectedly.
    pub crashes: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Seconds of a period in `rates`.
    pub period: f64,
    /// What was computed in the last periods, the oldest first; the last one is under way.
    pub rates: Vec<Rate>,
}

/// A loaded model and its runner. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunningModel {
    /// The name by which it was loaded.
    pub name: String,
    /// Digest of its manifest.
    pub digest: String,
    /// The device that computes.
    pub device: String,
    /// What it is, or why it is no other.
    pub device_note: String,
    /// The runner's process id.
    pub pid: u32,
    /// Sequences that are generated at a time.
    pub slots: u64,
    /// Requests that use it.
    pub active: u64,
    /// Requests that wait for it.
    pub waiting: u64,
    /// Tokens of a sequence.
    pub context: u64,
    /// How the KV cache keeps its elements.
    pub kv_cache_type: String,
    /// Weights, mapped or on devices.
    pub weights: u64,
    /// KV cache of all slots.
    pub kv_cache: u64,
    /// Weights and KV cache that are in memory of devices.
    pub on_devices: u64,
    /// Memory of the process that nobody shares, after the load.
    pub private: u64,
    /// When it is unloaded where nobody uses it; RFC 3339. Absent for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// Tokens of a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rate {
    /// Of prompts, without those that were in a KV cache; counted when their answer ends.
    pub prompt: u64,
    /// Of answers.
    pub generated: u64,
}
