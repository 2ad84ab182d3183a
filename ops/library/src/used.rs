//! When models were last used.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use content::Digest;

use crate::library::Library;

/// The kind of note with the second at which a manifest was last loaded.
pub(crate) const NOTE: &str = "used";

impl Library {
    /// Remembers that a model was loaded.
    pub fn record_use(&self, manifest: &Digest, now: SystemTime) -> Result<()> {
        let second = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        Ok(self.store.set_note(NOTE, manifest, &second.to_be_bytes())?)
    }

    /// When a model was last loaded, or got its name where that was later.
    pub fn last_used(&self, tag: &store::TagEntry) -> Result<SystemTime> {
        let note = self.store.note(NOTE, &tag.digest)?.and_then(|note| <[u8; 8]>::try_from(note).ok());
        let loaded = note.and_then(|second| UNIX_EPOCH.checked_add(Duration::from_secs(u64::from_be_bytes(second))));
        Ok(loaded.map_or(tag.modified, |loaded| loaded.max(tag.modified)))
    }
}
