//! Versions of a model: history, rollback, pins.

use std::time::SystemTime;

use content::Digest;
use content::operation::{Context, Result};
use content::{bail, ensure};
use manifests::ModelRef;

use crate::error::Error;
use crate::library::Library;
use crate::required_blobs::keep_parts;

/// State of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionState {
    /// The name refers to this version.
    Current,
    /// All its blobs are in the store.
    Here,
    /// Some of its blobs are gone.
    Gone,
}

/// A version of a model.
#[derive(Clone, Debug)]
pub struct Version {
    /// Digest of the manifest.
    pub digest: Digest,
    /// When the name was assigned to this version.
    pub since: SystemTime,
    /// State, which shows whether a rollback to this version is possible.
    pub state: VersionState,
}

/// Result of a rollback.
#[derive(Clone, Debug)]
pub struct RolledBack {
    /// Complete name of the model.
    pub model: String,
    /// Version before the rollback.
    pub from: Digest,
    /// Version after the rollback.
    pub to: Digest,
}

impl Library {
    /// Returns the versions of a model, the newest first, with its complete name.
    pub fn versions(&self, reference: &ModelRef) -> Result<(String, Vec<Version>)> {
        let tag = self.tag(reference)?;
        let mut versions = Vec::new();
        let mut current = false;
        for entry in self.store.names().history(&tag.name)?.into_iter().rev() {
            // The current version can occur several times in the history; the latest entry counts
            // as current.
            let state = match entry.digest == tag.digest && !current {
                true => VersionState::Current,
                false if self.is_whole(&entry.digest) => VersionState::Here,
                false => VersionState::Gone,
            };
            current |= state == VersionState::Current;
            versions.push(Version { digest: entry.digest, since: entry.since, state });
        }
        if !current {
            // The name was assigned before histories were recorded.
            let state = VersionState::Current;
            versions.insert(0, Version { digest: tag.digest, since: tag.modified, state });
        }
        Ok((shown(&tag.name)?, versions))
    }

    /// Assigns the name to an earlier version: the one whose digest begins with `to`, or the
    /// previous one.
    pub fn roll_back(&self, reference: &ModelRef, to: Option<&str>) -> Result<RolledBack> {
        // The guard keeps the version's blobs until it has its name.
        let guard = self.store.guard();
        let tag = self.tag(reference)?;
        let model = shown(&tag.name)?;
        let to = match to {
            Some(prefix) => self.version(&tag.name, &model, prefix)?,
            None => self.store.names().kept_versions(&tag.name)?.first().copied().ok_or_else(|| {
                Error::NoVersion(format!("model '{model}' has no earlier version; `lode history {model}` lists them"))
            })?,
        };
        let manifest = self.manifest(&to).map_err(|error| {
            Error::NoVersion(format!("version `{}` of model '{model}' is gone: {error:#}", to.short()))
        })?;
        guard.keep(&to)?;
        if let Some(need) = keep_parts(&guard, &manifest)? {
            let digest = need.descriptor.digest;
            let text = format!(
                "version `{}` of model '{model}' is gone: blob `{digest}` of `{}` was deleted",
                to.short(),
                need.layer
            );
            bail!(Error::NoVersion(text));
        }
        // After a crash, the index knows only documents with a name.
        if let Some(document) = self.sound_document(&to)? {
            self.describe(&to, &document);
        }
        self.store.names().set(&tag.name, &to)?;
        tracing::info!(model, from = %tag.digest, %to, "rolled back");
        Ok(RolledBack { model, from: tag.digest, to })
    }

    fn version(&self, key: &str, model: &str, prefix: &str) -> Result<Digest> {
        let wanted = prefix.strip_prefix("sha256:").unwrap_or(prefix).to_ascii_lowercase();
        let mut found: Vec<Digest> = self.store.names().history(key)?.into_iter().map(|entry| entry.digest).collect();
        found.retain(|digest| !wanted.is_empty() && digest.hex().starts_with(&wanted));
        found.sort_unstable();
        found.dedup();
        match found.as_slice() {
            [digest] => Ok(*digest),
            [] => bail!(Error::NoVersion(format!(
                "no version of model '{model}' begins with `{prefix}`; `lode history {model}` lists them"
            ))),
            several => bail!(Error::NoVersion(format!(
                "{} versions of model '{model}' begin with `{prefix}`; give more digits",
                several.len()
            ))),
        }
    }

    /// Whether all blobs of a version are in the store.
    fn is_whole(&self, digest: &Digest) -> bool {
        self.manifest(digest).is_ok_and(|manifest| matches!(self.first_missing(&manifest), Ok(None)))
    }

    /// Protects a model from removal; returns its complete name.
    pub fn pin(&self, reference: &ModelRef) -> Result<String> {
        let tag = self.tag(reference)?;
        self.store.names().pin(&tag.name)?;
        shown(&tag.name)
    }

    /// Removes the protection; returns the complete name.
    pub fn unpin(&self, reference: &ModelRef) -> Result<String> {
        let tag = self.tag(reference)?;
        let name = shown(&tag.name)?;
        ensure!(self.store.names().unpin(&tag.name)?, Error::NoVersion(format!("model '{name}' is not pinned")));
        Ok(name)
    }

    /// Fails if the model is pinned. A model that does not exist is not pinned.
    pub fn ensure_not_pinned(&self, reference: &ModelRef) -> Result<()> {
        let Some(tag) = self.find_tag(reference)? else { return Ok(()) };
        ensure!(!self.store.names().is_pinned(&tag.name)?, Error::Pinned(shown(&tag.name)?));
        Ok(())
    }

    fn tag(&self, reference: &ModelRef) -> Result<store::TagEntry> {
        Ok(self.find_tag(reference)?.ok_or_else(|| Error::NotFound(reference.to_string()))?)
    }
}

/// Returns a tag's name for display.
pub fn shown(key: &str) -> Result<String> {
    let reference: ModelRef = key.parse().with_context(|| format!("tag `{key}`"))?;
    Ok(reference.to_string())
}
