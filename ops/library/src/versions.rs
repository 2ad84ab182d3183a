//! Versions of a model: listing them, going back, pinning.

use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use content::Digest;
use manifests::ModelRef;

use crate::error::Error;
use crate::library::Library;

/// Where a version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionState {
    /// The name names it.
    Current,
    /// All of it is here.
    Here,
    /// Something of it is gone.
    Gone,
}

/// A version of a model.
#[derive(Clone, Debug)]
pub struct Version {
    /// Of its manifest.
    pub digest: Digest,
    /// When the name came to name it.
    pub since: SystemTime,
    /// Whether it can be gone back to.
    pub state: VersionState,
}

/// What going back did.
#[derive(Clone, Debug)]
pub struct RolledBack {
    /// The complete name.
    pub model: String,
    /// What it named before.
    pub from: Digest,
    /// What it names now.
    pub to: Digest,
}

impl Library {
    /// The versions of a model, the newest first, with its complete name.
    pub fn versions(&self, reference: &ModelRef) -> Result<(String, Vec<Version>)> {
        let tag = self.tag(reference)?;
        let mut versions = Vec::new();
        let mut current = false;
        for entry in self.store.history(&tag.name)?.into_iter().rev() {
            // The tag names one of them, the last where it came back to it.
            let state = match entry.digest == tag.digest && !current {
                true => VersionState::Current,
                false if self.is_whole(&entry.digest) => VersionState::Here,
                false => VersionState::Gone,
            };
            current |= state == VersionState::Current;
            versions.push(Version { digest: entry.digest, since: entry.since, state });
        }
        if !current {
            // It was named before there were histories.
            let state = VersionState::Current;
            versions.insert(0, Version { digest: tag.digest, since: tag.modified, state });
        }
        Ok((shown(&tag.name)?, versions))
    }

    /// Makes the name name an earlier version: the one whose digest begins so, or the last one.
    pub fn roll_back(&self, reference: &ModelRef, to: Option<&str>) -> Result<RolledBack> {
        // What is found to be here stays until it has its name.
        let _guard = self.store.guard();
        let tag = self.tag(reference)?;
        let model = shown(&tag.name)?;
        let to = match to {
            Some(prefix) => self.version(&tag.name, &model, prefix)?,
            None => self.store.kept_versions(&tag.name)?.first().copied().ok_or_else(|| {
                Error::NoVersion(format!("model '{model}' has no earlier version; `lode history {model}` lists them"))
            })?,
        };
        let manifest = self.manifest(&to).map_err(|error| {
            Error::NoVersion(format!("version `{}` of model '{model}' is gone: {error:#}", to.short()))
        })?;
        if let Some(need) = self.first_missing(&manifest)? {
            let digest = need.descriptor.digest;
            let text = format!(
                "version `{}` of model '{model}' is gone: blob `{digest}` of `{}` was deleted",
                to.short(),
                need.layer
            );
            bail!(Error::NoVersion(text));
        }
        // After a crash the index knows only of what has a name.
        if let Some(document) = self.sound_document(&to)? {
            self.describe(&to, &document);
        }
        self.store.set_tag(&tag.name, &to)?;
        tracing::info!(model, from = %tag.digest, %to, "rolled back");
        Ok(RolledBack { model, from: tag.digest, to })
    }

    fn version(&self, key: &str, model: &str, prefix: &str) -> Result<Digest> {
        let wanted = prefix.strip_prefix("sha256:").unwrap_or(prefix).to_ascii_lowercase();
        let mut found: Vec<Digest> = self.store.history(key)?.into_iter().map(|entry| entry.digest).collect();
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

    /// Whether everything of a version is here.
    fn is_whole(&self, digest: &Digest) -> bool {
        self.manifest(digest).is_ok_and(|manifest| matches!(self.first_missing(&manifest), Ok(None)))
    }

    /// Protects a model from being removed; gives its complete name.
    pub fn pin(&self, reference: &ModelRef) -> Result<String> {
        let tag = self.tag(reference)?;
        self.store.pin(&tag.name)?;
        shown(&tag.name)
    }

    /// Ends the protection; gives the complete name.
    pub fn unpin(&self, reference: &ModelRef) -> Result<String> {
        let tag = self.tag(reference)?;
        let name = shown(&tag.name)?;
        ensure!(self.store.unpin(&tag.name)?, Error::NoVersion(format!("model '{name}' is not pinned")));
        Ok(name)
    }

    /// Fails where the model is pinned. One that is not there is not.
    pub fn ensure_not_pinned(&self, reference: &ModelRef) -> Result<()> {
        let Some(tag) = self.find_tag(reference)? else { return Ok(()) };
        ensure!(!self.store.is_pinned(&tag.name)?, Error::Pinned(shown(&tag.name)?));
        Ok(())
    }

    fn tag(&self, reference: &ModelRef) -> Result<store::TagEntry> {
        Ok(self.find_tag(reference)?.ok_or_else(|| Error::NotFound(reference.to_string()))?)
    }
}

/// A tag's name as people write it.
pub fn shown(key: &str) -> Result<String> {
    let reference: ModelRef = key.parse().with_context(|| format!("tag `{key}`"))?;
    Ok(reference.to_string())
}
