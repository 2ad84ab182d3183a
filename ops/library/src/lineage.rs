//! Lineage of models: a manifest can name the model that it was derived from.

use content::Digest;
use content::operation::Result;
use manifests::media_types;

use crate::library::Library;
use crate::model::Model;
use crate::required_blobs::layer_name;
use crate::summary::Listed;

/// The base of a model, and the models derived from it.
#[derive(Clone, Debug, Default)]
pub struct Lineage {
    /// The manifest that the model was derived from, if its manifest names one.
    pub base: Option<Digest>,
    /// Local names of that manifest.
    pub bases: Vec<Listed>,
    /// Name, blob and size in bytes of each adapter.
    pub adapters: Vec<(String, Digest, u64)>,
    /// Local models that name this model as their base.
    pub derived: Vec<Listed>,
}

impl Library {
    /// Returns the base of a model and the models derived from it.
    ///
    /// # Errors
    /// The names cannot be listed.
    pub fn lineage(&self, model: &Model) -> Result<Lineage> {
        let base = model.manifest.base();
        let digest = *model.manifest.digest();
        let all = self.list()?;
        let named = |wanted: Option<Digest>| all.iter().filter(move |listed| Some(listed.summary.digest) == wanted);
        let adapters = model.manifest.layers_of(media_types::ADAPTER);
        Ok(Lineage {
            base,
            bases: named(base).cloned().collect(),
            adapters: adapters.map(|layer| (layer_name(layer), *layer.digest(), layer.size())).collect(),
            derived: all.iter().filter(|listed| listed.summary.base == Some(digest)).cloned().collect(),
        })
    }
}
