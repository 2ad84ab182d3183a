//! What lists say of models. It is found once and remembered by manifest: reading thousands of models takes seconds, and all of them would
//! not fit in memory.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use content::Digest;

use crate::capability::Capabilities;
use crate::general::General;
use crate::model::Model;

/// The most that are remembered: half a KB each.
const MOST: usize = 1 << 14;

/// What a list says of a model, whatever it is called.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The manifest.
    pub digest: Digest,
    /// Bytes of all of it.
    pub size: u64,
    /// The format of its source.
    pub format: String,
    /// Of a model that can be run, as we name it; else as its source does.
    pub family: String,
    /// What its config names, where the family is among them; else the family.
    pub families: Vec<String>,
    /// How many parameters it has, for people.
    pub parameters: String,
    /// How its weights are quantized, for people.
    pub quantization: String,
    /// Tokens that a sequence may have; 0 where nobody says.
    pub context: u64,
    /// The length of an embedding; 0 where nobody says.
    pub embedding: u64,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The manifest that it was made from, where it says.
    pub base: Option<Digest>,
}

/// A line of a list.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The complete name.
    pub name: String,
    /// When it was given.
    pub modified: SystemTime,
    /// What it names.
    pub summary: Arc<Summary>,
}

/// The summaries that were found.
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

    /// Forgets all but these.
    pub(crate) fn keep(&self, manifests: &HashSet<Digest>) {
        self.all().retain(|manifest, _| manifests.contains(manifest));
    }

    pub(crate) fn clear(&self) {
        self.all().clear();
    }
}

impl Summary {
    /// What is said of a model that can do so much, and whose source says this of it.
    pub fn of(model: &Model, capabilities: Capabilities, general: &General) -> Self {
        let (config, known) = (&model.config, model.understood.known());
        let family = known.map_or(config.model_family.as_str(), |described| described.architecture.family.name);
        // What somebody else wrote of a model may name more than one, e.g. that of a projector.
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
            embedding: blueprint.map_or(config.embedding_length, |blueprint| blueprint.hidden),
            capabilities,
            base: model.manifest.base(),
        }
    }
}
