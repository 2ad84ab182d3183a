//! Loaded models and their runners.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Response of `GET /api/lode/running`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunningResponse {
    /// Loaded models, sorted by name.
    pub models: Vec<RunningModel>,
    /// Number of requests that wait for a model.
    pub waiting: u64,
    /// Number of requests that use a model.
    pub active: u64,
    /// Maximum number of waiting requests.
    pub queue: u64,
    /// Maximum number of loaded models.
    pub most_loaded: u64,
    /// Maximum bytes of all loaded models; absent if there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// Number of loads since the daemon started.
    pub loads: u64,
    /// Number of models that were unloaded to make room.
    pub evictions: u64,
    /// Number of runners that ended unexpectedly.
    pub crashes: u64,
    /// Number of requests that were refused.
    pub refused: u64,
    /// Length of a period in `rates`, in seconds.
    pub period: f64,
    /// Token counts of the last periods, oldest first. The last period is still running.
    pub rates: Vec<Rate>,
}

/// A loaded model and its runner. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunningModel {
    /// Name by which the model was loaded.
    pub name: String,
    /// Digest of its manifest.
    pub digest: String,
    /// The device that computes the model.
    pub device: String,
    /// Description of the device, or the reason why no other is used.
    pub device_note: String,
    /// Process id of the runner.
    pub pid: u32,
    /// Number of parallel sequences.
    pub slots: u64,
    /// Number of requests that use the model.
    pub active: u64,
    /// Number of requests that wait for the model.
    pub waiting: u64,
    /// Context length in tokens.
    pub context: u64,
    /// Element type of the KV cache.
    pub kv_cache_type: String,
    /// Weights, mapped or on devices.
    pub weights: u64,
    /// KV cache of all slots.
    pub kv_cache: u64,
    /// Weights and KV cache on devices.
    pub on_devices: u64,
    /// Private memory of the process after the load, which is not shared with other processes.
    pub private: u64,
    /// Time when the model is unloaded if it stays unused (RFC 3339). Absent if it never is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// Token counts of one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rate {
    /// Prompt tokens that were computed, without tokens found in a KV cache. They count when the
    /// response ends.
    pub prompt: u64,
    /// Generated tokens.
    pub generated: u64,
}
