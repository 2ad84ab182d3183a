//! When models were last used.

use std::time::SystemTime;

use content::Digest;
use content::operation::Result;

use crate::library::Library;

impl Library {
    /// Records that a model was loaded. If this fails, the model counts as unused.
    pub fn record_use(&self, manifest: &Digest, now: SystemTime) {
        if let Err(error) = self.store.notes().record_use(manifest, now) {
            tracing::warn!("cannot record the use of a model: {error}");
        }
    }

    /// Returns when a model was last loaded or last got its name, whichever is later.
    pub fn last_used(&self, tag: &store::TagEntry) -> Result<SystemTime> {
        Ok(self.store.notes().last_use(&tag.digest)?.map_or(tag.modified, |used| used.max(tag.modified)))
    }
}
