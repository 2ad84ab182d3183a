//! Removing what is not needed any more: earlier versions, ingests that nobody goes on with, models and documents without a
//! tag that nobody uses.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use content::Digest;
use library::{Library, Linked, shown};
use store::{Collected, IngestEntry};

/// Ingests that nobody wrote to for so long are given up.
const IDLE: Duration = Duration::from_hours(1);

/// What to look for.
#[derive(Clone, Debug)]
pub struct PruneOptions {
    /// The present.
    pub now: SystemTime,
    /// Models that were not used for so long go too.
    pub older_than: Option<Duration>,
    /// Manifests that are loaded: they are in use however long ago that was.
    pub loaded: HashSet<String>,
}

/// What would be removed.
#[derive(Clone, Debug, Default)]
pub struct PrunePlan {
    /// Models that nobody used for long.
    pub models: Vec<UnusedModel>,
    /// Documents without a tag that nobody used for long.
    pub linked: Vec<Linked>,
    /// Names of tags with their earlier versions.
    pub versions: Vec<(String, Vec<Digest>)>,
    /// Ingests that nobody goes on with.
    pub ingests: Vec<IngestEntry>,
}

/// A model that nobody used for long.
#[derive(Clone, Debug)]
pub struct UnusedModel {
    key: String,
    digest: Digest,
    /// The name as people write it.
    pub name: String,
    /// When it was last used.
    pub used: SystemTime,
    /// Bytes of all of it, shared ones too.
    pub bytes: u64,
}

/// Finds what can go.
///
/// # Errors
/// The store cannot be read.
pub fn plan_prune(library: &Library, options: &PruneOptions) -> Result<PrunePlan> {
    let store = &library.store;
    let mut models = Vec::new();
    for tag in store.tags() {
        let Some(limit) = options.older_than else { break };
        let used = library.last_used(&tag)?;
        let old = options.now.duration_since(used).is_ok_and(|age| age >= limit);
        if !old || store.is_pinned(&tag.name)? || options.loaded.contains(&tag.digest.to_string()) {
            continue;
        }
        // One that cannot be read is left for people to look at.
        let Ok(needs) = library.needs(&tag.digest) else { continue };
        let bytes = needs.iter().map(|need| need.descriptor.size).sum();
        let name = shown(&tag.name).unwrap_or_else(|_| tag.name.clone());
        models.push(UnusedModel { name, key: tag.name, digest: tag.digest, used, bytes });
    }
    let mut linked = Vec::new();
    if let Some(limit) = options.older_than {
        linked = library.linked()?;
        linked.retain(|linked| options.now.duration_since(linked.used).is_ok_and(|age| age >= limit));
    }
    let mut versions = store.all_kept_versions();
    versions.retain(|(name, _)| !models.iter().any(|model| model.key == *name));
    let mut ingests = store.ingests(options.now)?;
    ingests.retain(|ingest| ingest.idle >= IDLE);
    Ok(PrunePlan { models, linked, versions, ingests })
}

impl PrunePlan {
    /// Removes what the plan says, as far as it is still so, and then what nothing refers to any more.
    ///
    /// # Errors
    /// The store's.
    pub fn execute(&self, library: &Library) -> Result<Collected> {
        let store = &library.store;
        for model in &self.models {
            let tag = store.tags().into_iter().find(|tag| tag.name == model.key && tag.digest == model.digest);
            if let Some(tag) = tag.filter(|tag| matches!(store.is_pinned(&tag.name), Ok(false))) {
                library.remove(&tag)?;
                tracing::info!(model = model.name, "removed: not used for long");
            }
        }
        for linked in &self.linked {
            if library.remove_linked(linked)? {
                tracing::info!(name = linked.name, "removed: not used for long");
            }
        }
        for (name, _) in &self.versions {
            store.forget_versions(name)?;
        }
        for ingest in &self.ingests {
            match store.discard_ingest(&ingest.id) {
                // Somebody goes on with it after all.
                Err(store::Error::Content(content::Error::Busy(_))) => {}
                other => other?,
            }
        }
        Ok(library.gc())
    }
}
