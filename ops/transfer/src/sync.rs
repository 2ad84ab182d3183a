//! Copies tags of another registry to the storage of this one, with all that they need.
//!
//! A tag that names the same manifest already is left alone. Blobs that the repository or another
//! one has are not fetched. A tag is set last, so an interrupted copy is invisible and the next one
//! goes on. Manifests about the copied ones, such as signatures, are copied too; signatures that
//! are tags (`sha256-….sig`) are if their tags match.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use content::operation::{Context, Result};
use content::{Descriptor, Digest};
use futures_util::{StreamExt, TryStreamExt};
use manifests::{Document, ModelRef};
use registry::RepositoryName;
use registry::client::{Error as RemoteError, Fetcher, Remote, catalog};
use registry::server::{
    Journal, JournalEntry, Lookup, NamePattern, NewManifest, NewTag, Reference, Repository, RepositoryRules, Storage,
    required_blobs,
};

use crate::hosts::Hosts;
use crate::repository_target::RepositoryTarget;
use crate::upstream::Uncounted;

/// Number of blobs of a manifest that are fetched at a time.
const AT_ONCE: usize = 4;
/// Maximum number of indexes within indexes.
const MAX_DEPTH: usize = 4;
/// Maximum number of manifests about one manifest.
const MOST_REFERRERS: usize = 1000;

/// Tags of another registry that are copied.
#[derive(Clone, Debug)]
pub struct SyncSource {
    /// The host of the registry.
    pub registry: String,
    /// Repositories there. One without a pattern is not looked up in the registry's catalog.
    pub repositories: Vec<NamePattern>,
    /// Tags; empty means all.
    pub tags: Vec<NamePattern>,
    /// A prefix of the repositories' names here, without a slash at its end.
    pub into: Option<String>,
    /// The time between two copies.
    pub every: Duration,
}

/// The registry that gets the copies.
#[derive(Debug)]
pub struct SyncTarget<'a, S> {
    /// Its storage.
    pub storage: &'a S,
    /// Its rules, which may forbid to move tags.
    pub rules: &'a RepositoryRules,
    /// Gets an entry for each copied tag, and for each copied manifest about another one.
    pub journal: &'a dyn Journal,
}

/// The result for a tag.
#[derive(Debug)]
pub struct SyncedTag {
    /// The repository here.
    pub repository: String,
    /// The tag.
    pub tag: String,
    /// Whether the tag was copied, or would be; or the reason why it could not be.
    pub outcome: Result<TagOutcome>,
}

/// The result of a copy for a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagOutcome {
    /// The tag names the same manifest here.
    Unchanged,
    /// The tag, or a manifest about its manifest, was copied.
    Copied,
    /// The tag differs, or a manifest about its manifest is missing, and copying was not asked for.
    Differs,
}

/// Whether tags are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncExecution {
    /// Tags that differ are copied.
    Copy,
    /// Tags that differ are only reported.
    Report,
}

/// Copies the tags of a source to a registry. `each` gets the result for each tag.
///
/// # Errors
/// The repositories of the source cannot be listed. A failure of a tag, or of the list of tags of
/// a repository, is passed to `each`.
pub async fn sync<S: Storage>(
    hosts: &Hosts,
    to: &SyncTarget<'_, S>,
    source: &SyncSource,
    execution: SyncExecution,
    mut each: impl FnMut(SyncedTag),
) -> Result<()> {
    for name in repositories(hosts, source).await? {
        let own = source.into.as_ref().map_or(name.clone(), |prefix| format!("{prefix}/{name}"));
        let copy = match Copy::of(hosts, to, source, &name, &own) {
            Ok(copy) => copy,
            Err(error) => {
                each(SyncedTag { repository: own, tag: "*".to_owned(), outcome: Err(error) });
                continue;
            }
        };
        match copy.tags(source).await {
            Ok(tags) => {
                for tag in tags {
                    let outcome = copy.tag(&tag, execution).await;
                    each(SyncedTag { repository: own.clone(), tag, outcome });
                }
            }
            Err(error) => each(SyncedTag { repository: own, tag: "*".to_owned(), outcome: Err(error) }),
        }
    }
    Ok(())
}

/// The repositories of a source that match.
async fn repositories(hosts: &Hosts, source: &SyncSource) -> Result<Vec<String>> {
    if let Some(names) = source.repositories.iter().map(|pattern| pattern.literal().map(str::to_owned)).collect() {
        return Ok(names);
    }
    let failed = || format!("the repositories of `{}` cannot be listed; name each of them", source.registry);
    let host = hosts.sources(&source.registry)?.pop().with_context(failed)?;
    let names = catalog::repositories(&host).await.with_context(failed)?;
    Ok(names.into_iter().filter(|name| source.repositories.iter().any(|pattern| pattern.matches(name))).collect())
}

/// Copies tags of one repository.
struct Copy<'a, S> {
    remote: Remote,
    fetcher: Fetcher,
    target: RepositoryTarget<S>,
    rules: &'a RepositoryRules,
    journal: &'a dyn Journal,
}

impl<'a, S: Storage> Copy<'a, S> {
    fn of(hosts: &Hosts, to: &SyncTarget<'a, S>, source: &SyncSource, name: &str, own: &str) -> Result<Self> {
        let reference: ModelRef = format!("{}/{name}", source.registry).parse()?;
        let (remote, parallel) = hosts.remote(&reference)?;
        let named = RepositoryName::parse(own).map_err(content::operation::OperationError::text)?;
        let repository = Repository { name: named, namespace: None, mirrored: true };
        let target = RepositoryTarget { storage: to.storage.clone(), repository: Arc::new(repository) };
        let SyncTarget { rules, journal, .. } = *to;
        Ok(Self { fetcher: Fetcher::new(remote.clone(), parallel), remote, target, rules, journal })
    }

    async fn tags(&self, source: &SyncSource) -> Result<Vec<String>> {
        let literal: Option<Vec<String>> =
            source.tags.iter().map(|pattern| pattern.literal().map(str::to_owned)).collect();
        if let Some(tags) = literal.filter(|tags| !tags.is_empty()) {
            return Ok(tags);
        }
        let host = self.remote.sources().last().context("the registry has no address")?;
        let tags = catalog::tags(host, self.remote.repository()).await?;
        let is_wanted = |tag: &String| source.tags.is_empty() || source.tags.iter().any(|pattern| pattern.matches(tag));
        Ok(tags.into_iter().filter(is_wanted).collect())
    }

    async fn tag(&self, tag: &str, execution: SyncExecution) -> Result<TagOutcome> {
        let RepositoryTarget { storage, repository } = &self.target;
        let (digest, raw) = self.remote.manifest(tag).await?;
        let is_same = storage.manifest(repository, &Reference::Tag(tag.to_owned())).await? == Some(digest);
        let subjects: Vec<Digest> = match Document::parse(&raw) {
            Ok(document) => [digest].into_iter().chain(document.children().manifests).collect(),
            Err(_) => vec![digest],
        };
        if !is_same {
            if execution == SyncExecution::Report {
                return Ok(TagOutcome::Differs);
            }
            let tags = self.rules.new_tags(&repository.name, vec![tag.to_owned()]);
            self.document(digest, raw, tags, MAX_DEPTH).await?;
            self.record(&Reference::Tag(tag.to_owned()), digest);
        }
        let missing = self.missing_referrers(subjects).await.context("the manifests about it were not copied")?;
        if execution == SyncExecution::Report {
            return Ok(if missing.is_empty() { TagOutcome::Unchanged } else { TagOutcome::Differs });
        }
        let mut has_changed = !is_same;
        for referrer in &missing {
            let copied = self.referrer(referrer).await;
            has_changed |= copied.with_context(|| format!("the manifest `{referrer}` about it"))?;
        }
        Ok(if has_changed { TagOutcome::Copied } else { TagOutcome::Unchanged })
    }

    /// The manifests about these manifests that are missing here, and the ones about them.
    async fn missing_referrers(&self, mut subjects: Vec<Digest>) -> Result<Vec<Digest>> {
        let RepositoryTarget { storage, repository } = &self.target;
        let mut seen: HashSet<Digest> = subjects.iter().copied().collect();
        let most = seen.len() + MOST_REFERRERS;
        let mut missing = Vec::new();
        while let Some(subject) = subjects.pop() {
            for digest in self.remote.referrers(&subject).await? {
                if !seen.insert(digest) {
                    continue;
                }
                content::ensure!(seen.len() <= most, "there are more than {MOST_REFERRERS} of them");
                subjects.push(digest);
                if storage.manifest(repository, &Reference::Digest(digest)).await?.is_none() {
                    missing.push(digest);
                }
            }
        }
        Ok(missing)
    }

    /// Copies a manifest about another one. Returns `false` if it was deleted since it was listed.
    async fn referrer(&self, digest: &Digest) -> Result<bool> {
        match self.remote.manifest(&digest.to_string()).await {
            Ok((digest, raw)) => {
                self.document(digest, raw, Vec::new(), MAX_DEPTH).await?;
                self.record(&Reference::Digest(digest), digest);
                Ok(true)
            }
            Err(RemoteError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn record(&self, reference: &Reference, digest: Digest) {
        self.journal.record(&JournalEntry::copy(&self.target.repository.name, reference, digest));
    }

    /// Copies a manifest, or an index after its manifests.
    async fn document(&self, digest: Digest, raw: Bytes, tags: Vec<NewTag>, depth: usize) -> Result<()> {
        let document = Document::parse(&raw).with_context(|| format!("manifest `{digest}`"))?;
        let RepositoryTarget { storage, repository } = &self.target;
        for child in document.children().manifests {
            content::ensure!(depth > 0, "`{digest}` has more than {MAX_DEPTH} levels of indexes");
            if storage.manifest(repository, &Reference::Digest(child)).await?.is_some() {
                continue;
            }
            match self.remote.manifest(&child.to_string()).await {
                Ok((digest, raw)) => Box::pin(self.document(digest, raw, Vec::new(), depth - 1)).await?,
                // An index may list manifests that were never pushed.
                Err(RemoteError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let required = required_blobs(&document);
        // Fetched first: an announcement ends after an hour.
        self.blobs(&required).await?;
        let digests: Vec<Digest> = required.iter().map(|blob| blob.digest).collect();
        let announced = storage.announce(repository, &digests).await?;
        let stored = async {
            // Only blobs that are found after the announcement are protected from collection.
            self.blobs(&required).await?;
            let manifest = NewManifest { digest, raw, document, required, tags };
            Ok(storage.put_manifest(repository, manifest, &announced).await?)
        };
        let stored = stored.await;
        if let Err(error) = storage.withdraw(announced).await {
            tracing::warn!("an announced manifest keeps its blobs for now: {error}");
        }
        stored
    }

    /// Adds blobs to the repository, from another repository here or from the source.
    async fn blobs(&self, blobs: &[Descriptor]) -> Result<()> {
        let RepositoryTarget { storage, repository } = &self.target;
        futures_util::stream::iter(blobs)
            .map(Ok)
            .try_for_each_concurrent(AT_ONCE, |blob| async move {
                let has = storage.blob(repository, &blob.digest, Lookup::Promise).await?.is_some();
                if has || storage.mount(None, repository, &blob.digest).await? {
                    return Ok(());
                }
                Ok(self.fetcher.fetch(&self.target, blob, &Uncounted).await?)
            })
            .await
    }
}
