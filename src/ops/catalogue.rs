//! The tensor catalogue of a stored model, kept as a note so that headers are read once.

use anyhow::Result;
use import::StoredTensor;
use manifests::Manifest;

use super::Library;
use super::pull_foreign::opener;

/// The kind of note under which catalogues are in the store's index. Notes of an earlier form have another name.
const NOTE: &str = "stored-tensors";

impl Library {
    /// Every tensor of a model, in the manifest's order.
    pub(crate) fn catalogue(&self, manifest: &Manifest) -> Result<Vec<StoredTensor>> {
        let known = self.store.note(NOTE, manifest.digest())?;
        if let Some(catalogue) = known.and_then(|note| serde_json::from_slice(&note).ok()) {
            return Ok(catalogue);
        }
        let catalogue = match self.whole_inventory(manifest)? {
            Some(inventory) => import::whole(&inventory)?,
            None => import::catalogue(manifest.layers(), &*opener(self))?,
        };
        self.store.set_note(NOTE, manifest.digest(), &serde_json::to_vec(&catalogue)?)?;
        Ok(catalogue)
    }
}
