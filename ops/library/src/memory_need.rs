//! The system memory that a model needs, for the scheduler's limits.

use std::collections::HashSet;

use architectures::names;
use estimate::exact::Cache;
use protocol::ContextRequest;

use crate::model::Model;

/// System memory that a stored model needs if it runs on the CPU only, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryNeed {
    /// Bytes of its blobs, which are mapped, without tables of n-grams.
    pub weights: u64,
    /// Bytes of the KV cache of all slots.
    pub kv_cache: u64,
    /// Bytes allocated while a chunk is computed.
    pub activations: u64,
    /// Bytes that the process uses before it loads a model.
    pub process: u64,
}

impl MemoryNeed {
    /// Estimates the need from the manifest and the blueprint. For a model that cannot be run, only
    /// the layers count; its load reports the reason.
    pub fn of(model: &Model, cache: ContextRequest) -> Self {
        let weights = model.manifest.layers().iter().map(manifests::Layer::size).fold(0, u64::saturating_add);
        let Some(described) = model.parsed_facts.known() else {
            return Self { weights, kv_cache: 0, activations: 0, process: 0 };
        };
        let decoder = described.decoder();
        // Of these tables, few pages are in memory.
        let tables: HashSet<&str> = decoder.blueprint.layer_tables().map(|table| table.name.as_str()).collect();
        let is_table = |layer: &&manifests::Layer| {
            layer.name().is_some_and(|name| !tables.is_empty() && tables.contains(&*names::of_folder(name)))
        };
        let of_tables = model.manifest.layers().iter().filter(is_table).map(manifests::Layer::size);
        let weights = weights - of_tables.fold(0, u64::saturating_add).min(weights);
        let cache = Cache { context: cache.context, slots: cache.slots, kv_type: cache.kv_type };
        Self {
            weights,
            kv_cache: decoder.kv_sizes(&cache).into_iter().fold(0, u64::saturating_add),
            activations: decoder.cpu_activations(&cache),
            process: decoder.process(),
        }
    }

    /// Returns the sum of all parts.
    pub fn total(self) -> u64 {
        [self.weights, self.kv_cache, self.activations, self.process].into_iter().fold(0, u64::saturating_add)
    }
}
