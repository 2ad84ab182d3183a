//! The order in which a load needs the blobs of a model.

use std::collections::{HashMap, HashSet};

use content::operation::Result;
use content::{Descriptor, Digest};
use manifests::{Layer, media_types};

use crate::library::Library;
use crate::model::Model;
use crate::parsed_facts::ParsedFacts;

/// When a pass reads a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PassStep {
    /// Documents, which are read before any tensor, and embeddings.
    First,
    /// The layer with this number.
    Layer(u64),
    /// The last norm, and the output.
    Last,
}

impl Library {
    /// Returns the blobs that a load of the model reads, in the order in which a pass reads them:
    /// documents, embeddings, layers, output. Blobs of tensors that the decoder does not read, and
    /// files that only exports need, are left out.
    ///
    /// # Errors
    /// The tensors of the model cannot be read.
    pub fn load_order(&self, model: &Model) -> Result<Vec<Descriptor>> {
        let tensors = self.catalogue(&model.manifest)?;
        let reads = match &*model.parsed_facts {
            ParsedFacts::Known(described) => Some(described.architecture.blueprint.reads()),
            ParsedFacts::Unknown(_) => None,
        };
        let of_tensors: HashSet<Digest> =
            tensors.iter().flat_map(|tensor| tensor.parts.iter().map(|part| part.blob)).collect();
        let mut steps: Vec<(PassStep, Digest)> = Vec::new();
        for tensor in tensors.iter().filter(|tensor| reads.as_ref().is_none_or(|reads| reads.has(&tensor.name))) {
            steps.extend(tensor.parts.iter().map(|part| (step(&tensor.name), part.blob)));
        }
        // Stable: blobs of one layer stay in the order of the manifest.
        steps.sort_by_key(|(step, _)| *step);
        let layers = model.manifest.layers();
        let is_for_exports =
            |layer: &Layer| [media_types::ORIGIN, media_types::HEADER, media_types::FILE].contains(layer.media_type());
        let others = layers.iter().filter(|layer| !of_tensors.contains(layer.digest()) && !is_for_exports(layer));
        let order = others.map(|layer| *layer.digest()).chain(steps.into_iter().map(|(_, digest)| digest));
        // Each blob comes once: the first step takes it out.
        let mut described: HashMap<Digest, &Descriptor> =
            layers.iter().map(|layer| (*layer.digest(), &layer.descriptor)).collect();
        Ok(order.filter_map(|digest| described.remove(&digest).cloned()).collect())
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
