//! The tensor catalogue of a stored model, remembered so that headers are read once.

use anyhow::Result;
use import::{CATALOGUE_VERSION, StoredTensor};
use manifests::Manifest;

use super::Library;
use super::derived::Derivation;
use super::pull_foreign::opener;

const DERIVATION: Derivation = Derivation { kind: "stored-tensors", version: CATALOGUE_VERSION };

impl Library {
    /// Every tensor of a model, in the manifest's order.
    pub(crate) fn catalogue(&self, manifest: &Manifest) -> Result<Vec<StoredTensor>> {
        self.derived(DERIVATION, manifest.digest(), || match self.whole_inventory(manifest)? {
            Some(inventory) => Ok(import::whole(&inventory)?),
            None => Ok(import::catalogue(manifest.layers(), &*opener(self))?),
        })
    }
}
