//! The tensor catalogue of a stored model, cached so that headers are read once.

use content::operation::Result;
use import::{CATALOGUE_VERSION, StoredTensor};
use manifests::Manifest;

use crate::derived::Derivation;
use crate::library::Library;

const DERIVATION: Derivation = Derivation { kind: "stored-tensors", version: CATALOGUE_VERSION };

impl Library {
    /// Returns all tensors of a model, in the manifest's order.
    pub fn catalogue(&self, manifest: &Manifest) -> Result<Vec<StoredTensor>> {
        self.derived(DERIVATION, manifest.digest(), || match self.whole_inventory(manifest)? {
            Some(inventory) => Ok(import::whole(&inventory)?),
            None => Ok(import::catalogue(manifest.layers(), &*self.opener())?),
        })
    }
}
