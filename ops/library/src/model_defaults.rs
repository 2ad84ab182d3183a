//! A model's defaults, from its own documents: parameters, system prompt, messages.

use std::sync::Arc;

use content::MediaType;
use content::operation::{Context, Result, Unclassified};
use manifests::{Layer, media_types};
use protocol::Message;
use serde_json::{Map, Value};

use crate::library::Library;
use crate::model::{Model, ModelDefaults, Opening};

/// Maximum bytes of a model's defaults that are cached.
const MAX_REMEMBERED: u64 = 1 << 20;

impl Model {
    /// Returns the model's defaults; they are read once.
    ///
    /// # Errors
    /// A document is missing or malformed.
    pub fn own(&self, library: &Library) -> Result<Arc<ModelDefaults>> {
        if let Some(own) = self.own.get() {
            return Ok(own.clone());
        }
        let own = Arc::new(ModelDefaults {
            parameters: self.parameters(library)?,
            sampling: library.general(&self.manifest)?.sampling,
            capabilities: library.capabilities(self)?,
            opening: self.opening(library).map_err(|error| format!("{error:#}")),
        });
        // Errors are not cached, because a repair can fix them.
        Ok(if own.opening.is_ok() && self.texts() <= MAX_REMEMBERED {
            self.own.get_or_init(|| own).clone()
        } else {
            own
        })
    }

    fn opening(&self, library: &Library) -> Result<Opening> {
        Ok(Opening {
            system: self.layer_text(library, media_types::SYSTEM)?.filter(|text| !text.is_empty()),
            messages: self.messages(library)?,
        })
    }

    /// Returns the bytes of the layers that contain the defaults.
    fn texts(&self) -> u64 {
        let kinds = [media_types::PARAMS, media_types::SYSTEM, media_types::MESSAGES];
        let layers = kinds.into_iter().flat_map(|kind| self.manifest.layers_of(kind));
        layers.map(Layer::size).fold(0, u64::saturating_add)
    }

    /// Returns the text of the first layer of a media type.
    pub fn layer_text(&self, library: &Library, media_type: MediaType) -> Result<Option<String>> {
        self.manifest.layers_of(media_type).next().map(|layer| library.text(layer.digest())).transpose()
    }

    /// Returns the parameters that the model was created with.
    pub fn parameters(&self, library: &Library) -> Result<Map<String, Value>> {
        match self.layer_text(library, media_types::PARAMS)? {
            Some(text) => {
                serde_json::from_str(&text).internal().context("the model's parameters are not a JSON object")
            }
            None => Ok(Map::new()),
        }
    }

    /// Returns the messages that precede every conversation.
    pub fn messages(&self, library: &Library) -> Result<Vec<Message>> {
        match self.layer_text(library, media_types::MESSAGES)? {
            Some(text) => serde_json::from_str(&text).internal().context("the model's messages are not a list"),
            None => Ok(Vec::new()),
        }
    }
}
