//! Which model was made from which: a manifest says what it was made from.

use anyhow::Result;
use content::Digest;
use manifests::media_types;

use crate::library::Library;
use crate::model::Model;
use crate::needs::layer_name;
use crate::summary::Listed;

/// Where a model is from, and what was made from it.
#[derive(Clone, Debug, Default)]
pub struct Lineage {
    /// The manifest that it was made from, where it says.
    pub base: Option<Digest>,
    /// The names of that manifest here.
    pub bases: Vec<Listed>,
    /// Name, blob and bytes of each adapter.
    pub adapters: Vec<(String, Digest, u64)>,
    /// Those here that say that they were made from it.
    pub derived: Vec<Listed>,
}

impl Library {
    /// Where a model is from, and what was made from it.
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
