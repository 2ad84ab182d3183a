//! The adapters of a model: layers with the files that they came in.

use anyhow::{Context, Result};
use formats::HyperParameters;
use import::{Adapter, NamedFile, StoredTensor};
use manifests::{Layer, Manifest, ModelConfig, media_types};
use serde::Deserialize;

use super::Library;
use super::create::{Observer, StoreTarget};
use super::pull_foreign::{opener, whole_file};

impl Library {
    /// The adapters of a model with these tensors.
    ///
    /// # Errors
    /// Where the files of one are damaged, or it does not fit.
    pub(super) fn adapters(
        &self,
        manifest: &Manifest,
        config: &ModelConfig,
        tensors: &[StoredTensor],
    ) -> Result<Vec<Adapter>> {
        let open = opener(self);
        let file = |(position, layer): (usize, &Layer)| {
            // Ollama's have no names; each is a GGUF file.
            let name = layer.name().filter(|name| !name.is_empty()).map(str::to_owned);
            let name = name.unwrap_or_else(|| format!("adapter-{position}.gguf"));
            Ok(NamedFile { name, source: open(layer.digest())? })
        };
        let files = manifest.layers_of(media_types::ADAPTER).enumerate().map(file).collect::<Result<Vec<_>>>()?;
        let adapters = import::adapters(&files)?;
        let hyper = config.lode.as_ref().and_then(|lode| HyperParameters::deserialize(&lode.hyper_parameters).ok());
        for adapter in &adapters {
            adapter.check(tensors, hyper.as_ref())?;
        }
        Ok(adapters)
    }
}

/// Makes layers of adapters' files for a model that has these layers already.
pub(super) fn adapter_layers(
    files: &[NamedFile],
    layers: &[Layer],
    target: &StoreTarget<'_>,
    observer: &dyn Observer,
) -> Result<Vec<Layer>> {
    let names = import::adapter_names(files, layers.iter().filter_map(Layer::name));
    let layer = |(file, name): (&NamedFile, String)| {
        let layer = whole_file(target, file, media_types::ADAPTER, &name)?;
        observer.status(format!("creating new layer {}", layer.digest()));
        Ok(layer)
    };
    files.iter().zip(names).map(layer).collect::<Result<_>>().context("cannot take the adapter")
}
