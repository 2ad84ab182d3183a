//! The adapters of a model: layers with the files that they came in.

use anyhow::Result;
use import::{Adapter, NamedFile, StoredTensor};
use manifests::{Layer, Manifest, media_types};

use crate::library::Library;
use crate::model::Model;
use crate::understood::Understood;

impl Library {
    /// The adapters of a model with these tensors.
    ///
    /// # Errors
    /// Where the files of one are damaged, or it does not fit.
    pub fn adapters(
        &self,
        manifest: &Manifest,
        understood: &Understood,
        tensors: &[StoredTensor],
    ) -> Result<Vec<Adapter>> {
        let file = |(position, layer): (usize, &Layer)| {
            // Ollama's have no names; each is a GGUF file.
            let name = layer.name().filter(|name| !name.is_empty()).map(str::to_owned);
            let name = name.unwrap_or_else(|| format!("adapter-{position}.gguf"));
            NamedFile { name, source: self.open(layer.digest()) }
        };
        let files: Vec<NamedFile> = manifest.layers_of(media_types::ADAPTER).enumerate().map(file).collect();
        fitting(&files, understood, tensors)
    }

    /// Holds adapters, whose files are blobs, against a model.
    ///
    /// # Errors
    /// Where files are none of an adapter, or it does not fit.
    pub fn check_adapters(&self, files: &[NamedFile], model: &Model) -> Result<()> {
        if !files.is_empty() {
            fitting(files, &model.understood, &self.catalogue(&model.manifest)?)?;
        }
        Ok(())
    }
}

fn fitting(files: &[NamedFile], understood: &Understood, tensors: &[StoredTensor]) -> Result<Vec<Adapter>> {
    let adapters = import::adapters(files)?;
    for adapter in &adapters {
        adapter.check(tensors, understood.gguf_name())?;
    }
    Ok(adapters)
}
