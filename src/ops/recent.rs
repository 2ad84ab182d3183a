//! The models that were used lately, as they were read. What a digest names does not change, so nothing here goes stale;
//! only a name has to be looked up again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use content::Digest;
use manifests::{Manifest, ModelConfig};

use super::model::OnceOwn;

/// How many are remembered: more than are loaded at a time on most machines.
const MOST: usize = 16;

/// Manifest and config of a model, and what its own documents say once somebody has asked.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    pub(super) manifest: Arc<Manifest>,
    pub(super) config: Arc<ModelConfig>,
    pub(super) own: Arc<OnceOwn>,
}

/// The contents that were asked for last, the latest at the end.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<VecDeque<Contents>>);

impl Recent {
    /// The contents of the model with that manifest, if they are remembered.
    pub(super) fn get(&self, manifest: &Digest) -> Option<Contents> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let position = all.iter().position(|contents| contents.manifest.digest() == manifest)?;
        let found = all.remove(position)?;
        all.push_back(found.clone());
        Some(found)
    }

    /// The contents of the model with that manifest; reads and remembers them where they are not.
    pub(super) fn get_or_read(&self, manifest: &Digest, read: impl FnOnce() -> Result<Contents>) -> Result<Contents> {
        if let Some(found) = self.get(manifest) {
            return Ok(found);
        }
        // Not under the lock: two that read the same model at once only waste a little work.
        let contents = read()?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(contents.clone());
        if all.len() > MOST {
            all.pop_front();
        }
        Ok(contents)
    }
}
