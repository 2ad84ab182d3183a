//! Reading the facts in a model's source.

use content::Descriptor;
use content::operation::{Result, Unclassified};
use formats::Gguf;
use manifests::Manifest;
use serde_json::{Map, Value};

use crate::derived::Derivation;
use crate::general::{GENERATION_CONFIG, General, json, of_folder, of_gguf};
use crate::library::Library;
use crate::parsed_facts::SourceDocument;

const DERIVATION: Derivation = Derivation { kind: "general", version: 1 };

impl Library {
    /// Returns the facts in a model's source besides its architecture.
    ///
    /// # Errors
    /// A document cannot be read.
    pub fn general(&self, manifest: &Manifest) -> Result<General> {
        self.derived(DERIVATION, manifest.digest(), || {
            if let SourceDocument::Gguf { model: header, .. } = self.source_document(manifest)? {
                return Ok(Gguf::parse_header(&header).map(|gguf| of_gguf(&gguf)).unwrap_or_default());
            }
            let documents = self.documents(manifest);
            let config = documents.iter().find(|(name, _)| name == GENERATION_CONFIG);
            let raw = config.map(|(_, digest)| self.text(digest)).transpose()?.unwrap_or_default();
            Ok(of_folder(&serde_json::from_slice(&formats::json::tolerant(raw.as_bytes())).unwrap_or_default()))
        })
    }

    /// Returns the document that describes the model's architecture.
    pub(crate) fn source_document(&self, manifest: &Manifest) -> Result<SourceDocument> {
        if let Some(inventory) = self.whole_inventory(manifest)? {
            return SourceDocument::of_files(&inventory);
        }
        let open = |_: &str, descriptor: &Descriptor| self.open(&descriptor.digest);
        SourceDocument::of_layers(manifest, &open)
    }

    /// Returns all metadata of a model from a GGUF file, including lists; empty for other models.
    ///
    /// # Errors
    /// The header cannot be read.
    pub fn metadata(&self, manifest: &Manifest) -> Result<Map<String, Value>> {
        let SourceDocument::Gguf { model: header, .. } = self.source_document(manifest)? else { return Ok(Map::new()) };
        let gguf = Gguf::parse_header(&header).internal()?;
        Ok(gguf.metadata.iter().map(|(key, value)| ((*key).to_owned(), json(value))).collect())
    }
}
