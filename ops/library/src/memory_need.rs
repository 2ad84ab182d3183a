//! What a model takes of the system's memory, for the scheduler's limits.

use estimate::exact::Cache;
use protocol::ContextRequest;

use crate::model::Model;

/// What a model of the store takes of the system's memory where all of it is on the CPU, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryNeed {
    /// Its layers, mapped.
    pub weights: u64,
    /// The KV cache of all slots.
    pub kv_cache: u64,
    /// What is allocated while a chunk is computed.
    pub activations: u64,
    /// What the process takes before it does anything.
    pub process: u64,
}

impl MemoryNeed {
    /// By the manifest and the blueprint. Of a model that cannot be run only the layers count; its load says more.
    pub fn of(model: &Model, cache: ContextRequest) -> Self {
        let weights = model.manifest.layers().iter().map(manifests::Layer::size).fold(0, u64::saturating_add);
        let Some(described) = model.understood.known() else {
            return Self { weights, kv_cache: 0, activations: 0, process: 0 };
        };
        let decoder = described.decoder();
        let cache = Cache { context: cache.context, slots: cache.slots, kv_type: cache.kv_type };
        Self {
            weights,
            kv_cache: decoder.kv_sizes(&cache).into_iter().fold(0, u64::saturating_add),
            activations: decoder.cpu_activations(&cache),
            process: decoder.process(),
        }
    }

    /// All of it.
    pub fn total(self) -> u64 {
        [self.weights, self.kv_cache, self.activations, self.process].into_iter().fold(0, u64::saturating_add)
    }
}
