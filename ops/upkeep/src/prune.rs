//! Pruning: removes earlier versions, abandoned ingests, and models and untagged documents that
//! have not been used for long.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use content::Digest;
use content::operation::Result;
use library::{Library, UntaggedManifest, shown};
use store::{Collected, IngestEntry};

/// Ingests without a write for this long are abandoned.
const IDLE: Duration = Duration::from_hours(1);

/// Options of a prune.
#[derive(Clone, Debug)]
pub struct PruneOptions {
    /// The current time.
    pub now: SystemTime,
    /// Also removes models that have not been used for this long.
    pub older_than: Option<Duration>,
    /// Manifests of loaded models. They count as in use, whenever they were loaded.
    pub loaded: HashSet<Digest>,
}

/// The items that a prune removes.
#[derive(Clone, Debug, Default)]
pub struct PrunePlan {
    /// Models that have not been used for long.
    pub models: Vec<UnusedModel>,
    /// Untagged documents that have not been used for long.
    pub linked: Vec<UntaggedManifest>,
    /// Tag names with their earlier versions.
    pub versions: Vec<(String, Vec<Digest>)>,
    /// Abandoned ingests.
    pub ingests: Vec<IngestEntry>,
}

/// A model that has not been used for long.
#[derive(Clone, Debug)]
pub struct UnusedModel {
    key: String,
    digest: Digest,
    /// Name of the model, as users write it.
    pub name: String,
    /// When it was last used.
    pub used: SystemTime,
    /// Bytes of all its blobs, including shared ones.
    pub bytes: u64,
}

/// Finds the items to remove.
///
/// # Errors
/// The store cannot be read.
pub fn plan_prune(library: &Library, options: &PruneOptions) -> Result<PrunePlan> {
    let mut models = Vec::new();
    for tag in library.names().list_here() {
        let Some(limit) = options.older_than else { break };
        let used = library.last_used(&tag)?;
        let old = options.now.duration_since(used).is_ok_and(|age| age >= limit);
        if !old || library.names().is_pinned(&tag.name)? || options.loaded.contains(&tag.digest) {
            continue;
        }
        // A model that cannot be read stays, so that the user can inspect it.
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
    let mut versions = library.names().all_kept_versions();
    versions.retain(|(name, _)| !models.iter().any(|model| model.key == *name));
    let mut ingests = library.blobs().ingests(options.now)?;
    ingests.retain(|ingest| ingest.idle >= IDLE);
    Ok(PrunePlan { models, linked, versions, ingests })
}

impl PrunePlan {
    /// Removes the items of the plan that are still unused, then all blobs that are no longer
    /// referenced.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn execute(&self, library: &Library) -> Result<Collected> {
        for model in &self.models {
            let tag =
                library.names().list_here().into_iter().find(|tag| tag.name == model.key && tag.digest == model.digest);
            if let Some(tag) = tag.filter(|tag| matches!(library.names().is_pinned(&tag.name), Ok(false))) {
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
            library.names().forget_versions(name)?;
        }
        for ingest in &self.ingests {
            match library.blobs().discard_ingest(&ingest.id) {
                // Another process has resumed the ingest.
                Err(store::Error::Content(content::Error::Busy(_))) => {}
                other => other?,
            }
        }
        Ok(library.gc())
    }
}
