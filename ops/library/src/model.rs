//! A model of the store.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use manifests::{Manifest, ModelConfig};
use protocol::Message;
use serde_json::{Map, Value};

use crate::capability::Capabilities;
use crate::parsed_facts::ParsedFacts;

/// A model with its documents.
#[derive(Clone, Debug)]
pub struct Model {
    /// Complete name by which the model was found.
    pub name: String,
    /// The manifest, which lists its blobs.
    pub manifest: Arc<Manifest>,
    /// The config: facts that are known without reading a tensor.
    pub config: Arc<ModelConfig>,
    /// The architecture, as this build derives it.
    pub parsed_facts: Arc<ParsedFacts>,
    /// When the name was assigned.
    pub modified: SystemTime,
    pub(crate) own: Arc<OnceModelDefaults>,
}

/// The model's defaults that every request needs, besides manifest and config.
#[derive(Debug)]
pub struct ModelDefaults {
    /// Parameters that the model was created with.
    pub parameters: Map<String, Value>,
    /// Sampling parameters that its maker recommends.
    pub sampling: Map<String, Value>,
    /// Capabilities of the model.
    pub capabilities: Capabilities,
    /// System prompt and messages that precede conversations, or why they cannot be read. The error
    /// is kept, because not every request needs them.
    pub opening: Result<Opening, String>,
}

/// The beginning of every conversation.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// System prompt, if the model has one.
    pub system: Option<String>,
    /// Messages after the system prompt.
    pub messages: Vec<Message>,
}

/// Defaults that are read at their first use.
pub(crate) type OnceModelDefaults = OnceLock<Arc<ModelDefaults>>;

/// Manifest and config of a model, and its defaults once they have been read.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) config: Arc<ModelConfig>,
    pub(crate) parsed_facts: Arc<ParsedFacts>,
    pub(crate) own: Arc<OnceModelDefaults>,
}
