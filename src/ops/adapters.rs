//! The adapters of a model: layers with the files that they came in.

use std::sync::Arc;

use anyhow::{Context, Result};
use import::{Adapter, LocalFile, NamedFile, StoredTensor};
use manifests::{Layer, Manifest, media_types};

use super::create::{Observer, StoreTarget};
use super::pull_foreign::{opener, whole_file};
use super::{Library, Model, Understood};

impl Library {
    /// The adapters of a model with these tensors.
    ///
    /// # Errors
    /// Where the files of one are damaged, or it does not fit.
    pub(super) fn adapters(
        &self,
        manifest: &Manifest,
        understood: &Understood,
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
        fitting(&files, understood, tensors)
    }
}

/// Holds adapters, whose files are blobs, against a model.
///
/// # Errors
/// Where files are none of an adapter, or it does not fit.
pub(super) fn check_adapters(files: &[NamedFile], library: &Library, model: &Model) -> Result<()> {
    if !files.is_empty() {
        fitting(files, &model.understood, &library.catalogue(&model.manifest)?)?;
    }
    Ok(())
}

fn fitting(files: &[NamedFile], understood: &Understood, tensors: &[StoredTensor]) -> Result<Vec<Adapter>> {
    let adapters = import::adapters(files)?;
    for adapter in &adapters {
        adapter.check(tensors, understood.gguf_name())?;
    }
    Ok(adapters)
}

/// The files of adapters as blobs, without those that only lie beside them.
///
/// # Errors
/// A file cannot be read, or there is none that an adapter has.
pub(super) fn staged(files: Vec<NamedFile>, library: &Library, target: &StoreTarget<'_>) -> Result<Vec<NamedFile>> {
    let blob = |file: NamedFile| {
        let layer = whole_file(target, &file, media_types::ADAPTER, &file.name)?;
        let digest = *layer.digest();
        let source = Arc::new(LocalFile::new(library.store.path(&digest)).with_digest(digest));
        Ok(NamedFile { name: file.name, source })
    };
    let wanted = import::adapter_files(files)?.into_iter();
    wanted.map(blob).collect::<Result<_>>().context("cannot take the adapter")
}

/// Makes layers of adapters' files for a model that has these layers already.
pub(super) fn adapter_layers(
    files: &[NamedFile],
    layers: &[Layer],
    target: &StoreTarget<'_>,
    observer: &dyn Observer,
) -> Result<Vec<Layer>> {
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let names = import::adapter_names(&names, layers.iter().filter_map(Layer::name));
    let layer = |(file, name): (&NamedFile, String)| {
        let layer = whole_file(target, file, media_types::ADAPTER, &name)?;
        observer.status(format!("creating new layer {}", layer.digest()));
        Ok(layer)
    };
    files.iter().zip(names).map(layer).collect::<Result<_>>()
}
