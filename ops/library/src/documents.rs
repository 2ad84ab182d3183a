//! The documents of a model: the files of its source other than tensors.

use content::Digest;
use manifests::{Manifest, media_types};

use crate::library::Library;

impl Library {
    /// Returns the files other than tensors, by name. A whole GGUF file counts as a document
    /// because it begins with its header.
    pub(crate) fn documents(&self, manifest: &Manifest) -> Vec<(String, Digest)> {
        let kept = [media_types::JSON, media_types::FILE, media_types::HEADER];
        let document = |name: &str, digest: &Digest| (name.to_owned(), *digest);
        let layers = manifest.layers().iter().filter(|layer| kept.contains(layer.media_type()));
        let layers = layers.map(|layer| document(layer.name().unwrap_or_default(), layer.digest()));
        let files = self.whole_files(manifest);
        let files = files.iter().filter_map(|file| Some(document(&file.name, &file.source.digest()?)));
        layers.chain(files).collect()
    }
}
