//! Summaries of models for lists. They are cached by manifest: reading thousands of models takes
//! seconds, and their full contents would not fit into memory.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use content::Digest;

use crate::capability::Capabilities;
use crate::general::General;
use crate::model::Model;

/// Maximum number of cached summaries, of about half a KB each.
const MOST: usize = 1 << 17;

/// Summary of a model, independent of its name.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Digest of the manifest.
    pub digest: Digest,
    /// Bytes of all its blobs.
    pub size: u64,
    /// Format of the source.
    pub format: String,
    /// Family: our name for a model that can be run, else the source's name.
    pub family: String,
    /// Families in the config, if they include the family; else only the family.
    pub families: Vec<String>,
    /// Number of parameters, for display.
    pub parameters: String,
    /// Quantization of the weights, for display.
    pub quantization: String,
    /// Maximum context length in tokens; 0 if unknown.
    pub context: u64,
    /// Length of an embedding; 0 if unknown.
    pub embedding: u64,
    /// Capabilities of the model.
    pub capabilities: Capabilities,
    /// Manifest that the model was derived from, if its manifest names one.
    pub base: Option<Digest>,
}

/// A line of a list.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Complete name.
    pub name: String,
    /// When the name was assigned.
    pub modified: SystemTime,
    /// Summary of the named model.
    pub summary: Arc<Summary>,
}

/// Cached summaries.
#[derive(Debug, Default)]
pub(crate) struct Summaries(Mutex<HashMap<Digest, Arc<Summary>>>);

impl Summaries {
    pub(crate) fn all(&self) -> MutexGuard<'_, HashMap<Digest, Arc<Summary>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, manifest: &Digest) -> Option<Arc<Summary>> {
        self.all().get(manifest).cloned()
    }

    pub(crate) fn remember(&self, summary: &Arc<Summary>) {
        let mut all = self.all();
        if all.len() < MOST {
            all.insert(summary.digest, summary.clone());
        }
    }

    /// Drops all summaries except those of the given manifests.
    pub(crate) fn keep(&self, manifests: &HashSet<Digest>) {
        self.all().retain(|manifest, _| manifests.contains(manifest));
    }

    pub(crate) fn clear(&self) {
        self.all().clear();
    }
}

impl Summary {
    /// Creates the summary of a model from its capabilities and the facts in its source.
    pub fn of(model: &Model, capabilities: Capabilities, general: &General) -> Self {
        let (config, known) = (&model.config, model.parsed_facts.known());
        let family = known.map_or(config.model_family.as_str(), |described| described.architecture.family.name);
        // Configs written by other tools can list more than one family, e.g. that of a projector.
        let named = config.model_families.iter().any(|other| other == family);
        let blueprint = known.map(|described| &described.architecture.blueprint);
        Self {
            digest: *model.manifest.digest(),
            size: model.manifest.total_size(),
            format: match config.lode.as_ref().map(|lode| lode.source_format.as_str()) {
                Some("gguf") => "gguf".to_owned(),
                _ => config.model_format.clone(),
            },
            family: family.to_owned(),
            families: if named { config.model_families.clone() } else { vec![family.to_owned()] },
            parameters: config.model_type.clone(),
            quantization: general.quantization(model),
            context: blueprint.map_or(config.context_length, |blueprint| blueprint.context),
            embedding: blueprint.map_or(config.embedding_length, architectures::Blueprint::embedding_width),
            capabilities,
            base: model.manifest.base(),
        }
    }
}
