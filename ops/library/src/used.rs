//! When models were last used.

use std::time::SystemTime;

use anyhow::Result;
use content::Digest;

use crate::library::Library;

impl Library {
    /// Remembers that a model was loaded. Where that cannot be written, it is as if nobody had used it.
    pub fn record_use(&self, manifest: &Digest, now: SystemTime) {
        if let Err(error) = self.store.record_use(manifest, now) {
            tracing::warn!("that a model was used is not remembered: {error}");
        }
    }

    /// When a model was last loaded, or got its name where that was later.
    pub fn last_used(&self, tag: &store::TagEntry) -> Result<SystemTime> {
        Ok(self.store.last_use(&tag.digest)?.map_or(tag.modified, |used| used.max(tag.modified)))
    }
}
