//! Removing what is not needed any more: earlier versions, ingests that nobody goes on with, models that nobody uses.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use content::Digest;
use manifests::Document;
use store::{Collected, IngestEntry};

use super::Library;
use super::library::description;
use super::versions::shown;

/// The kind of note with the second at which a manifest was last loaded.
const NOTE: &str = "used";
/// Ingests that nobody wrote to for so long are given up.
const IDLE: Duration = Duration::from_hours(1);

/// What to look for.
#[derive(Clone, Debug)]
pub(crate) struct PruneOptions {
    pub(crate) now: SystemTime,
    /// Models that were not used for so long go too.
    pub(crate) older_than: Option<Duration>,
    /// Manifests that are loaded: they are in use however long ago that was.
    pub(crate) loaded: HashSet<String>,
}

/// What would be removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrunePlan {
    pub(crate) models: Vec<UnusedModel>,
    /// Names of tags with their earlier versions.
    pub(crate) versions: Vec<(String, Vec<Digest>)>,
    pub(crate) ingests: Vec<IngestEntry>,
}

/// A model that nobody used for long.
#[derive(Clone, Debug)]
pub(crate) struct UnusedModel {
    key: String,
    digest: Digest,
    /// The name as people write it.
    pub(crate) name: String,
    pub(crate) used: SystemTime,
    pub(crate) bytes: u64,
}

impl Library {
    /// Remembers that a model was loaded.
    pub(crate) fn record_use(&self, manifest: &Digest, now: SystemTime) -> Result<()> {
        let second = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        Ok(self.store.set_note(NOTE, manifest, &second.to_be_bytes())?)
    }

    /// When a model was last loaded, or got its name where that was later.
    fn last_used(&self, tag: &store::TagEntry) -> Result<SystemTime> {
        let note = self.store.note(NOTE, &tag.digest)?.and_then(|note| <[u8; 8]>::try_from(note).ok());
        let loaded = note.and_then(|second| UNIX_EPOCH.checked_add(Duration::from_secs(u64::from_be_bytes(second))));
        Ok(loaded.map_or(tag.modified, |loaded| loaded.max(tag.modified)))
    }

    /// Makes the index anew from the files. When models were last used is in the index alone, and is carried over.
    pub(crate) fn rebuild(&self) -> Result<store::Rebuilt> {
        let mut used = Vec::new();
        for tag in self.store.tags()? {
            used.extend(self.store.note(NOTE, &tag.digest)?.map(|note| (tag.digest, note)));
        }
        // What is deleted meanwhile would be missing half-way.
        let _guard = self.store.guard();
        let rebuilt = self.store.rebuild(|digest| {
            let raw = self.store.read_blob(digest, manifests::MAX_MANIFEST as u64);
            let document = raw.map_err(anyhow::Error::from).and_then(|raw| Ok(Document::parse(&raw)?));
            Ok::<_, store::Error>(document.map_or_else(
                |error| {
                    tracing::warn!(%digest, "cannot be indexed: {error:#}");
                    store::Description::default()
                },
                |document| description(&document),
            ))
        });
        for (digest, note) in used {
            self.store.set_note(NOTE, &digest, &note)?;
        }
        Ok(rebuilt?)
    }
}

/// Finds what can go.
pub(crate) fn plan_prune(library: &Library, options: &PruneOptions) -> Result<PrunePlan> {
    let store = &library.store;
    let mut models = Vec::new();
    for tag in store.tags()? {
        let Some(limit) = options.older_than else { break };
        let used = library.last_used(&tag)?;
        let old = options.now.duration_since(used).is_ok_and(|age| age >= limit);
        if !old || store.is_pinned(&tag.name)? || options.loaded.contains(&tag.digest.to_string()) {
            continue;
        }
        // One that cannot be read is left for people to look at.
        let Ok(needs) = library.needs(&tag.digest) else { continue };
        let bytes = needs.iter().map(|need| need.descriptor.size).sum();
        models.push(UnusedModel { name: shown(&tag.name)?, key: tag.name, digest: tag.digest, used, bytes });
    }
    let mut versions = store.all_kept_versions()?;
    versions.retain(|(name, _)| !models.iter().any(|model| model.key == *name));
    let mut ingests = store.ingests(options.now)?;
    ingests.retain(|ingest| ingest.idle >= IDLE);
    Ok(PrunePlan { models, versions, ingests })
}

impl PrunePlan {
    /// Removes what the plan says, as far as it is still so, and then what nothing refers to any more.
    pub(crate) fn execute(&self, library: &Library) -> Result<Collected> {
        let store = &library.store;
        for model in &self.models {
            let tag = store.tags()?.into_iter().find(|tag| tag.name == model.key && tag.digest == model.digest);
            if let Some(tag) = tag.filter(|tag| matches!(store.is_pinned(&tag.name), Ok(false))) {
                library.remove(&tag)?;
                tracing::info!(model = model.name, "removed: not used for long");
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
        library.gc()
    }
}
