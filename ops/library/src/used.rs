//! When models were last used.

use std::collections::HashMap;
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

    /// Returns the time of the first call for a repository, and the last use of each of its models.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn uses(
        &self,
        repository: &str,
        now: SystemTime,
    ) -> std::result::Result<(SystemTime, HashMap<Digest, SystemTime>), store::Error> {
        let notes = self.store.notes();
        let since = notes.uses_since(repository, now)?;
        let mut last = HashMap::new();
        for tag in self.names().of_repository(repository)? {
            last.extend(notes.last_use(&tag.digest)?.map(|used| (tag.digest, used)));
        }
        Ok((since, last))
    }

    /// Returns when a model was last loaded or last got its name, whichever is later.
    pub fn last_used(&self, tag: &store::TagEntry) -> Result<SystemTime> {
        Ok(self.store.notes().last_use(&tag.digest)?.map_or(tag.modified, |used| used.max(tag.modified)))
    }
}
