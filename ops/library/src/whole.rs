//! Models whose weights are whole GGUF files, as other tools push them. The files are used in
//! place.
//!
//! Nothing is imported. Only a note is written: the facts in the header are cached under the
//! manifest's digest, so that listing models does not read vocabularies.

use content::operation::Result;
use import::{Inventory, NamedFile};
use manifests::{Manifest, ModelConfig};

use crate::derived::Derivation;
use crate::layout::{FileKind, Layout, classify};
use crate::library::Library;

/// The config derived from the headers of a model's files.
const DERIVATION: Derivation = Derivation { kind: "whole-config", version: 1 };

impl Library {
    /// Returns the GGUF files that are layers of the model; empty if its tensors have separate
    /// blobs.
    pub(crate) fn whole_files(&self, manifest: &Manifest) -> Vec<NamedFile> {
        let Layout::Files(files) = classify(manifest) else { return Vec::new() };
        let weights = files.into_iter().filter(|file| matches!(file.kind, FileKind::Gguf | FileKind::Projector));
        weights.map(|file| NamedFile { source: self.open(file.layer.digest()), name: file.name }).collect()
    }

    /// Returns the contents of these files' headers; `None` if there are no such files.
    pub(crate) fn whole_inventory(&self, manifest: &Manifest) -> Result<Option<Inventory>> {
        let files = self.whole_files(manifest);
        if files.is_empty() {
            return Ok(None);
        }
        Ok(Some(import::inventory(&files)?))
    }

    /// Completes the config of a model of whole files with facts from the files. The flag is false
    /// if the files could not be read.
    pub(crate) fn completed(&self, config: ModelConfig, manifest: &Manifest) -> (ModelConfig, bool) {
        if config.lode.is_some() {
            return (config, true);
        }
        match self.described(manifest) {
            Ok(Some(own)) => (merged(config, own), true),
            Ok(None) => (config, true),
            Err(error) => {
                tracing::warn!(manifest = %manifest.digest(), "its GGUF file cannot be read: {error:#}");
                (config, false)
            }
        }
    }

    fn described(&self, manifest: &Manifest) -> Result<Option<ModelConfig>> {
        self.derived(DERIVATION, manifest.digest(), || {
            let inventory = self.whole_inventory(manifest)?;
            let config = inventory.map(|inventory| import::describe(&inventory));
            Ok(config.map(|config| ModelConfig { model_format: "gguf".to_owned(), ..config }))
        })
    }
}

/// Merges two configs: values in the manifest's own config take precedence over those of the file.
fn merged(theirs: ModelConfig, own: ModelConfig) -> ModelConfig {
    let text = |theirs: String, own: String| if theirs.is_empty() { own } else { theirs };
    let list = |theirs: Vec<String>, own: Vec<String>| if theirs.is_empty() { own } else { theirs };
    let number = |theirs: u64, own: u64| if theirs == 0 { own } else { theirs };
    ModelConfig {
        model_format: text(theirs.model_format, own.model_format),
        model_family: text(theirs.model_family, own.model_family),
        model_families: list(theirs.model_families, own.model_families),
        model_type: text(theirs.model_type, own.model_type),
        file_type: text(theirs.file_type, own.file_type),
        capabilities: list(theirs.capabilities, own.capabilities),
        context_length: number(theirs.context_length, own.context_length),
        embedding_length: number(theirs.embedding_length, own.embedding_length),
        lode: own.lode,
        ..theirs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_keeps_what_it_says() {
        let theirs = ModelConfig { model_family: "theirs".to_owned(), context_length: 7, ..ModelConfig::default() };
        let own = ModelConfig {
            model_family: "llama".to_owned(),
            file_type: "Q4_0".to_owned(),
            embedding_length: 64,
            lode: Some(manifests::LodeConfig::default()),
            ..ModelConfig::default()
        };
        let both = merged(theirs, own);
        assert_eq!((both.model_family.as_str(), both.file_type.as_str()), ("theirs", "Q4_0"));
        assert_eq!((both.context_length, both.embedding_length, both.lode.is_some()), (7, 64, true));
    }
}
