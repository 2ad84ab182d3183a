//! The adapters of a model: layers that contain the adapters' original files.

use architectures::HeadLayout;
use content::operation::Result;
use import::{Adapter, NamedFile, ProjectionIndex, StoredTensor};
use manifests::{Layer, Manifest, media_types};

use crate::library::Library;
use crate::model::Model;
use crate::parsed_facts::{Described, ParsedFacts, SourceDocument};

impl Library {
    /// Returns the adapters of a model.
    ///
    /// # Errors
    /// The files of an adapter are damaged.
    pub fn adapters(&self, manifest: &Manifest) -> Result<Vec<Adapter>> {
        let file = |(position, layer): (usize, &Layer)| {
            // Ollama's adapter layers have no names; each is a GGUF file.
            let name = layer.name().filter(|name| !name.is_empty()).map(str::to_owned);
            let name = name.unwrap_or_else(|| format!("adapter-{position}.gguf"));
            NamedFile { name, source: self.open(layer.digest()) }
        };
        let files: Vec<NamedFile> = manifest.layers_of(media_types::ADAPTER).enumerate().map(file).collect();
        Ok(import::adapters(&files)?)
    }

    /// Checks that adapters, whose files are blobs, fit a model.
    ///
    /// # Errors
    /// The files are not adapters, or an adapter does not fit.
    pub fn check_adapters(&self, files: &[NamedFile], model: &Model) -> Result<()> {
        check_fit(&import::adapters(files)?, &model.parsed_facts, || self.catalogue(&model.manifest))
    }

    /// Returns the head layout of adapters that were trained on a Hugging Face folder, if it
    /// differs from the layout of the model's own weights because these come from a GGUF file.
    pub(crate) fn layout_of_folders(&self, model: &Model, described: &Described) -> Result<Option<HeadLayout>> {
        let is_folder = matches!(self.source_document(&model.manifest)?, SourceDocument::Config(_));
        Ok((!is_folder).then_some(described.architecture.family.hugging_face.layout))
    }

    /// Checks that the adapters of a model fit its weights.
    ///
    /// # Errors
    /// The files of an adapter are damaged, or it does not fit.
    pub fn check_own_adapters(&self, manifest: &Manifest) -> Result<()> {
        check_fit(&self.adapters(manifest)?, &self.parsed_facts(manifest)?, || self.catalogue(manifest))
    }
}

/// Checks that adapters fit a model; skipped for models without a blueprint.
fn check_fit(
    adapters: &[Adapter],
    parsed_facts: &ParsedFacts,
    tensors: impl FnOnce() -> Result<Vec<StoredTensor>>,
) -> Result<()> {
    let Some(described) = parsed_facts.known().filter(|_| !adapters.is_empty()) else { return Ok(()) };
    let tensors = tensors()?;
    let places = described.places(&tensors);
    for adapter in adapters {
        adapter.fit(&places, parsed_facts.gguf_name())?;
    }
    Ok(())
}

impl Described {
    /// Returns the parts of the model that adapters can change.
    pub(crate) fn places(&self, tensors: &[StoredTensor]) -> ProjectionIndex<'_> {
        ProjectionIndex::of(self.architecture.family, &self.architecture.blueprint, tensors)
    }
}
