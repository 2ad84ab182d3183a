//! Adapters for a new model: their files become blobs and layers.

use content::Observer;
use content::operation::{Context, Result};
use import::NamedFile;
use library::Library;
use manifests::{Layer, media_types};

use crate::target::{StoreTarget, whole_file};

/// Stores the files of adapters as blobs. Skips files that do not belong to an adapter.
///
/// # Errors
/// A file cannot be read, or none belongs to an adapter.
pub(crate) fn staged(files: Vec<NamedFile>, library: &Library, target: &StoreTarget<'_>) -> Result<Vec<NamedFile>> {
    let blob = |file: NamedFile| {
        let layer = whole_file(target, &file, media_types::ADAPTER, &file.name)?;
        let digest = *layer.digest();
        Ok(NamedFile { name: file.name, source: library.open(&digest) })
    };
    let wanted = import::adapter_files(files)?.into_iter();
    wanted.map(blob).collect::<Result<_>>().context("cannot take the adapter")
}

/// Creates layers from the files of adapters, for a model with the given layers.
pub(crate) fn adapter_layers(
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
