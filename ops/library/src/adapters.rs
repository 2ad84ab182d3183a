//! The adapters of a model: layers with the files that they came in.

use anyhow::Result;
use architectures::HeadLayout;
use import::{Adapter, NamedFile, Places, StoredTensor};
use manifests::{Layer, Manifest, media_types};

use crate::library::Library;
use crate::model::Model;
use crate::understood::{Described, SourceDocument, Understood};

impl Library {
    /// The adapters of a model.
    ///
    /// # Errors
    /// Where the files of one are damaged.
    pub fn adapters(&self, manifest: &Manifest) -> Result<Vec<Adapter>> {
        let file = |(position, layer): (usize, &Layer)| {
            // Ollama's have no names; each is a GGUF file.
            let name = layer.name().filter(|name| !name.is_empty()).map(str::to_owned);
            let name = name.unwrap_or_else(|| format!("adapter-{position}.gguf"));
            NamedFile { name, source: self.open(layer.digest()) }
        };
        let files: Vec<NamedFile> = manifest.layers_of(media_types::ADAPTER).enumerate().map(file).collect();
        Ok(import::adapters(&files)?)
    }

    /// Holds adapters, whose files are blobs, against a model.
    ///
    /// # Errors
    /// Where files are none of an adapter, or it does not fit.
    pub fn check_adapters(&self, files: &[NamedFile], model: &Model) -> Result<()> {
        check_fit(&import::adapters(files)?, &model.understood, || self.catalogue(&model.manifest))
    }

    /// The layout of heads that an adapter which was trained with a folder has, where it is not that of the model's own weights: these
    /// are from a GGUF file.
    pub(crate) fn layout_of_folders(&self, model: &Model, described: &Described) -> Result<Option<HeadLayout>> {
        let is_folder = matches!(self.source_document(&model.manifest)?, SourceDocument::Config(_));
        Ok((!is_folder).then_some(described.architecture.family.hugging_face.layout))
    }

    /// Holds the adapters of a model against the rest of it.
    ///
    /// # Errors
    /// Where the files of one are damaged, or it does not fit.
    pub fn check_own_adapters(&self, manifest: &Manifest) -> Result<()> {
        check_fit(&self.adapters(manifest)?, &self.understood(manifest)?, || self.catalogue(manifest))
    }
}

/// Holds adapters against a model; skipped for models without a blueprint.
fn check_fit(
    adapters: &[Adapter],
    understood: &Understood,
    tensors: impl FnOnce() -> Result<Vec<StoredTensor>>,
) -> Result<()> {
    let Some(described) = understood.known().filter(|_| !adapters.is_empty()) else { return Ok(()) };
    let tensors = tensors()?;
    let places = described.places(&tensors);
    for adapter in adapters {
        adapter.fit(&places, understood.gguf_name())?;
    }
    Ok(())
}

impl Described {
    /// What adapters of the model can change.
    pub(crate) fn places(&self, tensors: &[StoredTensor]) -> Places<'_> {
        Places::of(self.architecture.family, &self.architecture.blueprint, tensors)
    }
}
