//! The order in which a pass reads the tensors of a model.

use std::collections::HashSet;

use content::operation::Result;
use content::{Descriptor, Digest};

use crate::library::Library;
use crate::model::Model;
use crate::parsed_facts::ParsedFacts;

/// When a pass reads a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PassStep {
    /// Embeddings.
    First,
    /// The layer with this number.
    Layer(u64),
    /// The last norm, and the output.
    Last,
}

impl Library {
    /// Returns the blobs of the tensors that the decoder reads, in the order in which a pass reads
    /// them: embeddings, layers, output.
    ///
    /// # Errors
    /// The tensors of the model cannot be read.
    pub fn load_order(&self, model: &Model) -> Result<Vec<Descriptor>> {
        let reads = match &*model.parsed_facts {
            ParsedFacts::Known(described) => described.architecture.blueprint.reads(),
            ParsedFacts::Unknown(_) => return Ok(Vec::new()),
        };
        let mut steps: Vec<(PassStep, Digest)> = Vec::new();
        for tensor in self.catalogue(&model.manifest)?.iter().filter(|tensor| reads.has(&tensor.name)) {
            steps.extend(tensor.parts.iter().map(|part| (step(&tensor.name), part.blob)));
        }
        // Stable: blobs of one layer stay in the order of the manifest.
        steps.sort_by_key(|(step, _)| *step);
        let mut seen = HashSet::new();
        steps.retain(|(_, digest)| seen.insert(*digest));
        let mut blobs = Vec::with_capacity(steps.len());
        for (_, digest) in steps {
            if let Some(size) = self.store.blobs().size(&digest)? {
                blobs.push(Descriptor::blob(digest, size));
            }
        }
        Ok(blobs)
    }
}

fn step(tensor: &str) -> PassStep {
    match tensor.split('.').find_map(|part| part.parse().ok()) {
        Some(number) => PassStep::Layer(number),
        None if tensor.contains("embed") => PassStep::First,
        None => PassStep::Last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_read_in_the_order_of_a_pass() {
        let names = [
            "model.embed_tokens.weight",
            "model.layers.2.mlp.up_proj.weight",
            "model.layers.10.mlp.up_proj.weight",
            "model.norm.weight",
            "lm_head.weight",
        ];
        assert!(names.is_sorted_by_key(|name| step(name)), "{:?}", names.map(step));
    }
}
