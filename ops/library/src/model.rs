//! A model of the store.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use manifests::{Manifest, ModelConfig};
use protocol::Message;
use serde_json::{Map, Value};

use crate::capability::Capabilities;
use crate::understood::Understood;

/// A model with its documents.
#[derive(Clone, Debug)]
pub struct Model {
    /// The name by which it was found, complete.
    pub name: String,
    /// What it consists of.
    pub manifest: Arc<Manifest>,
    /// What is known of it without reading a tensor.
    pub config: Arc<ModelConfig>,
    /// What this build makes of it.
    pub understood: Arc<Understood>,
    /// When the name was given to it.
    pub modified: SystemTime,
    pub(crate) own: Arc<OnceOwn>,
}

/// What every request needs of a model besides its manifest and config.
#[derive(Debug)]
pub struct Own {
    /// The parameters that the model was created with.
    pub parameters: Map<String, Value>,
    /// How its maker means it to be sampled.
    pub sampling: Map<String, Value>,
    /// What it can do.
    pub capabilities: Capabilities,
    /// What precedes conversations, or why that cannot be read: not every request needs it.
    pub opening: Result<Opening, String>,
}

/// What precedes every conversation.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// The system prompt, where the model has one.
    pub system: Option<String>,
    /// Messages after it.
    pub messages: Vec<Message>,
}

/// Read when somebody asks for the first time.
pub(crate) type OnceOwn = OnceLock<Arc<Own>>;

/// Manifest and config of a model, and what its own documents say once somebody has asked.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) config: Arc<ModelConfig>,
    pub(crate) understood: Arc<Understood>,
    pub(crate) own: Arc<OnceOwn>,
}
