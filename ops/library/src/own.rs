//! What a model's own documents say: its parameters, its system prompt, its messages.

use std::sync::Arc;

use anyhow::{Context, Result};
use content::MediaType;
use manifests::{Layer, media_types};
use protocol::Message;
use serde_json::{Map, Value};

use crate::library::Library;
use crate::model::{Model, Opening, Own};

/// The most bytes of a model's own documents that are remembered.
const MAX_REMEMBERED: u64 = 1 << 20;

impl Model {
    /// What its own documents say; they are read once.
    ///
    /// # Errors
    /// One of them is missing or not what it should be.
    pub fn own(&self, library: &Library) -> Result<Arc<Own>> {
        if let Some(own) = self.own.get() {
            return Ok(own.clone());
        }
        let own = Arc::new(Own {
            parameters: self.parameters(library)?,
            sampling: library.general(&self.manifest)?.sampling,
            capabilities: library.capabilities(self)?,
            opening: self.opening(library).map_err(|error| format!("{error:#}")),
        });
        // What could not be read may be mended.
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

    /// Bytes of the layers that are read for this.
    fn texts(&self) -> u64 {
        let kinds = [media_types::PARAMS, media_types::SYSTEM, media_types::MESSAGES];
        let layers = kinds.into_iter().flat_map(|kind| self.manifest.layers_of(kind));
        layers.map(Layer::size).fold(0, u64::saturating_add)
    }

    /// The text of the first layer of a type.
    pub fn layer_text(&self, library: &Library, media_type: MediaType) -> Result<Option<String>> {
        self.manifest.layers_of(media_type).next().map(|layer| library.text(layer.digest())).transpose()
    }

    /// The parameters that the model was created with.
    pub fn parameters(&self, library: &Library) -> Result<Map<String, Value>> {
        match self.layer_text(library, media_types::PARAMS)? {
            Some(text) => serde_json::from_str(&text).context("the model's parameters are not a JSON object"),
            None => Ok(Map::new()),
        }
    }

    /// The messages that precede every conversation.
    pub fn messages(&self, library: &Library) -> Result<Vec<Message>> {
        match self.layer_text(library, media_types::MESSAGES)? {
            Some(text) => serde_json::from_str(&text).context("the model's messages are not a list"),
            None => Ok(Vec::new()),
        }
    }
}
