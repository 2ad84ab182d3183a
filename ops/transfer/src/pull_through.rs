//! A storage that copies from other registries what its repositories lack, when a client asks for
//! it.
//!
//! ```text
//! tag    ──▶ the registry's digest ──same──▶ the copy
//!                 │ differs                    ▲ unreachable, or slow
//!                 └──▶ its manifest, stored ───┘
//! digest ──▶ the copy, or else the registry's manifest, stored
//! blob   ──▶ the copy, or else the registry's bytes: to the client and the storage (`transfers`)
//! ```
//! A manifest is stored before its blobs, each of which is copied when a client reads it. Copies
//! that the other registry has deleted stay.

mod follow;
mod shared_work;
mod sources;
mod transfers;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use content::operation::RemoteClass;
use content::{Descriptor, Digest, Error, Expected, IngestId, Ingester, Provider};
use futures_util::StreamExt;
use manifests::Document;
use registry::client::catalog;
use registry::server::{
    BlobStorage, BlobStream, CopiedFrom, CopiedRegistries, Journal, JournalEntry, Listed, ListedManifest, ListedTag,
    Lookup, ManifestStorage, NewManifest, NewTag, Page, Pulls, Reference, Removal, Repository, RepositoryRules,
    RepositoryUpkeep, ServerOptions, Storage, TagChange, windows,
};

use crate::hosts::Hosts;
use crate::repository_target::RepositoryTarget;
use follow::Follower;
use shared_work::SharedWork;
use sources::{CopySource, Sources};
pub use transfers::BlobSharing;
use transfers::Transfers;

/// How long a client that could get a copy waits for the other registry.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of manifests about one manifest that a request copies.
const MOST_REFERRERS: usize = 1000;
/// Number of them that are copied at a time.
const REFERRERS_AT_ONCE: usize = 4;

/// A storage, and the registries that it copies from. Clones share the work in progress.
#[derive(Clone, Debug)]
pub struct PullThrough<S> {
    storage: S,
    copied: Arc<CopiedRegistries>,
    rules: Arc<RepositoryRules>,
    journal: Arc<dyn Journal>,
    sources: Sources,
    transfers: Transfers,
    manifests: SharedWork<String, Digest>,
}

impl<S: Storage> PullThrough<S> {
    /// Copies the repositories that the options of the server name to `storage`, as far as its
    /// rules let tags change.
    pub fn new(storage: S, hosts: Hosts, sharing: BlobSharing, options: &ServerOptions) -> Self {
        let ServerOptions { copied, rules, journal, .. } = options.clone();
        let (sources, transfers) = (Sources::new(hosts), Transfers::new(sharing));
        Self { storage, copied, rules, journal, sources, transfers, manifests: SharedWork::default() }
    }

    /// The source of a repository; `None` if the repository is not a copy, or if the client may not
    /// cause requests to other registries.
    fn source<'a>(&'a self, of: &'a Repository) -> Option<CopiedFrom<'a>> {
        if of.mirrored { None } else { self.copied.source(&of.name) }
    }

    /// The change of a tag that names a reference; `None` if the reference is a digest.
    fn new_tag(&self, of: &Repository, at: &Reference) -> Option<NewTag> {
        match at {
            Reference::Tag(tag) => self.rules.new_tags(&of.name, vec![tag.clone()]).pop(),
            Reference::Digest(_) => None,
        }
    }

    /// Whether a copy stays, whatever its source has: that of a digest, or of an immutable tag.
    fn is_final(&self, of: &Repository, at: &Reference) -> bool {
        self.new_tag(of, at).is_none_or(|tag| tag.change == TagChange::Forbidden)
    }

    /// The manifest as the other registry has it by now, copied.
    async fn current(self, of: Repository, at: Reference) -> Result<Digest, Error> {
        let here = self.storage.manifest(&of, &at).await?;
        let from = self
            .source(&of)
            .ok_or_else(|| Error::Other(format!("`{}` is not a copy of another repository", of.name).into()))?;
        let remote = self.sources.connect(from)?.remote;
        if let (Some(here), Reference::Tag(tag)) = (here, &at)
            && remote.digest(tag).await? == Some(here)
        {
            return Ok(here);
        }
        let (digest, raw) = remote.manifest(&at.to_string()).await?;
        if here == Some(digest) {
            return Ok(digest);
        }
        let document = Document::parse(&raw).map_err(|e| Error::Remote {
            class: RemoteClass::Refused,
            source: format!("`{}` sent a manifest that cannot be read: {e}", from.host).into(),
        })?;
        let tags = self.new_tag(&of, &at).into_iter().collect();
        let announced = self.storage.announce(&of, &[]).await?;
        let manifest = NewManifest { digest, raw, document, required: Vec::new(), tags };
        let stored = self.storage.put_manifest(&of, manifest, &announced).await;
        if let Err(error) = self.storage.withdraw(announced).await {
            tracing::warn!("an announced manifest stays announced for now: {error}");
        }
        stored?;
        self.journal.record(&JournalEntry::copy(&of.name, &at, digest));
        Ok(digest)
    }

    /// Copies the manifests about `subject` that the repository lacks.
    async fn copy_referrers(&self, of: &Repository, from: CopiedFrom<'_>, subject: &Digest) -> Result<(), Error> {
        let listed = self.sources.connect(from)?.remote.referrers(subject).await?;
        let copies = futures_util::stream::iter(listed.into_iter().take(MOST_REFERRERS));
        let copy = async |digest: Digest| {
            // A listed manifest may be deleted by now, or of an unknown kind.
            if let Err(error) = self.manifest(of, &Reference::Digest(digest)).await {
                tracing::warn!(repository = %of.name, %digest, "not copied from another registry: {error}");
            }
        };
        copies.for_each_concurrent(REFERRERS_AT_ONCE, copy).await;
        Ok(())
    }

    /// The copy, if the other registry failed, or the failure if there is no copy.
    fn fall_back<T>(&self, from: CopiedFrom<'_>, failed: Error, copy: Option<T>) -> Result<Option<T>, Error> {
        let class = if let Error::Remote { class, .. } = &failed { Some(*class) } else { None };
        if class == Some(RemoteClass::NotFound) {
            return Ok(copy);
        }
        let Some(copy) = copy else {
            // Registries deny access to content that they do not have.
            return if class == Some(RemoteClass::NoAccess) { Ok(None) } else { Err(failed) };
        };
        if !self.sources.is_failing(from.host) {
            tracing::warn!(registry = from.host, repository = from.name, "the copy may be outdated: {failed}");
            if class == Some(RemoteClass::Unreachable) {
                self.sources.note_failure(from.host);
            }
        }
        Ok(Some(copy))
    }

    /// The answer of the other registry. If there is a copy, its failure or slowness does not keep
    /// the client waiting for long.
    async fn ask<T>(
        &self,
        from: CopiedFrom<'_>,
        has_copy: bool,
        question: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if !has_copy {
            return question.await;
        }
        let unreachable = |reason: String| Error::Remote {
            class: RemoteClass::Unreachable,
            source: format!("`{}` {reason}", from.host).into(),
        };
        if self.sources.is_failing(from.host) {
            return Err(unreachable("failed a moment ago".to_owned()));
        }
        let slow = |_| Err(unreachable(format!("did not answer within {} s", PATIENCE.as_secs())));
        tokio::time::timeout(PATIENCE, question).await.unwrap_or_else(slow)
    }
}

impl<S: Storage> Provider for PullThrough<S> {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, Error> {
        self.storage.stat(digest).await
    }

    async fn read(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, Error> {
        self.storage.read(blob, range).await
    }
}

impl<S: Storage> Ingester for PullThrough<S> {
    type Ingest = S::Ingest;

    async fn ingest(&self, id: &IngestId, expected: Expected) -> Result<S::Ingest, Error> {
        self.storage.ingest(id, expected).await
    }
}

impl<S: Storage> BlobStorage for PullThrough<S> {
    async fn blob(&self, of: &Repository, digest: &Digest, lookup: Lookup) -> Result<Option<Descriptor>, Error> {
        let here = self.storage.blob(of, digest, lookup).await?;
        let Some(from) = self.source(of).filter(|_| here.is_none()) else { return Ok(here) };
        match self.sources.connect(from)?.remote.stat(digest).await {
            Ok(found) => Ok(found),
            Err(error) => self.fall_back(from, error, None),
        }
    }

    async fn stream(&self, of: &Repository, blob: &Descriptor, range: Range<u64>) -> Result<BlobStream, Error> {
        let Some(from) = self.source(of) else { return self.storage.stream(of, blob, range).await };
        if self.storage.blob(of, &blob.digest, Lookup::Read).await?.is_some() {
            return self.storage.stream(of, blob, range).await;
        }
        let CopySource { remote, fetcher } = self.sources.connect(from)?;
        let target = RepositoryTarget { storage: self.storage.clone(), repository: Arc::new(of.clone()) };
        match self.transfers.join(target.clone(), fetcher, blob, range == (0..blob.size)) {
            Some(transfer) => Follower { transfer, target, remote, blob: blob.clone(), range }.stream().await,
            None => windows(&remote, blob, range, ()).await,
        }
    }

    async fn link(&self, of: &Repository, blob: &Descriptor) -> Result<Option<String>, Error> {
        // A blob that the other registry has may also be in a repository of this one.
        if self.source(of).is_some() && self.storage.blob(of, &blob.digest, Lookup::Read).await?.is_none() {
            return Ok(None);
        }
        self.storage.link(of, blob).await
    }

    async fn mount(&self, from: Option<&Repository>, to: &Repository, digest: &Digest) -> Result<bool, Error> {
        self.storage.mount(from, to, digest).await
    }

    async fn remove_blob(&self, of: &Repository, digest: &Digest) -> Result<Removal, Error> {
        self.storage.remove_blob(of, digest).await
    }

    async fn resume(&self, id: &IngestId) -> Result<Option<S::Ingest>, Error> {
        self.storage.resume(id).await
    }

    async fn finish(&self, to: &Repository, upload: S::Ingest, expected: Expected) -> Result<(Digest, u64), Error> {
        self.storage.finish(to, upload, expected).await
    }
}

impl<S: Storage> ManifestStorage for PullThrough<S> {
    type Announcement = S::Announcement;

    async fn announce(&self, to: &Repository, blobs: &[Digest]) -> Result<S::Announcement, Error> {
        self.storage.announce(to, blobs).await
    }

    async fn withdraw(&self, announcement: S::Announcement) -> Result<(), Error> {
        self.storage.withdraw(announcement).await
    }

    async fn read_manifest(&self, of: &Repository, digest: &Digest) -> Result<Option<Bytes>, Error> {
        self.storage.read_manifest(of, digest).await
    }

    async fn record_pull(&self, of: &Repository, digest: &Digest) -> Result<(), Error> {
        self.storage.record_pull(of, digest).await
    }

    async fn manifest(&self, of: &Repository, at: &Reference) -> Result<Option<Digest>, Error> {
        let here = self.storage.manifest(of, at).await?;
        let Some(from) = self.source(of) else { return Ok(here) };
        if here.is_some() && self.is_final(of, at) {
            return Ok(here);
        }
        let key = format!("{}:{at}", of.name);
        let mut current = self.manifests.join(key, |_| self.clone().current(of.clone(), at.clone()));
        match self.ask(from, here.is_some(), current.finished()).await {
            Ok(digest) => Ok(Some(digest)),
            Err(error) => self.fall_back(from, error, here),
        }
    }

    async fn put_manifest(
        &self,
        to: &Repository,
        manifest: NewManifest,
        announced: &S::Announcement,
    ) -> Result<(), Error> {
        self.storage.put_manifest(to, manifest, announced).await
    }

    async fn remove_manifest(&self, of: &Repository, at: &Reference) -> Result<Removal, Error> {
        self.storage.remove_manifest(of, at).await
    }

    async fn referrers(&self, of: &Repository, subject: &Digest, page: &Page) -> Result<Listed<Digest>, Error> {
        let Some(from) = self.source(of).filter(|_| page.after.is_none()) else {
            return self.storage.referrers(of, subject, page).await;
        };
        let here = self.storage.referrers(of, subject, page).await?;
        match self.ask(from, !here.entries.is_empty(), self.copy_referrers(of, from, subject)).await {
            Ok(()) => self.storage.referrers(of, subject, page).await,
            // Without a copy, an empty list would say that there are no signatures.
            Err(error) => {
                let copy = (!here.entries.is_empty()).then_some(());
                self.fall_back(from, error, copy).map(|_| here)
            }
        }
    }

    /// The tags of the other registry, and the copied ones that it has no more.
    async fn tags(&self, of: &Repository, page: &Page) -> Result<Option<Listed<String>>, Error> {
        let Some(from) = self.source(of) else { return self.storage.tags(of, page).await };
        let copied = self.storage.listed_tags(of).await?;
        let remote = self.sources.connect(from)?.remote;
        let host = remote.sources().last().expect("invariant: a remote has a source");
        let listed = async { catalog::tags(host, remote.repository()).await.map_err(Error::from) };
        let mut tags = match self.ask(from, !copied.is_empty(), listed).await {
            Ok(tags) => tags,
            Err(error) => {
                self.fall_back(from, error, (!copied.is_empty()).then_some(()))?;
                return self.storage.tags(of, page).await;
            }
        };
        tags.extend(copied.into_iter().map(|tag| tag.name));
        tags.sort();
        tags.dedup();
        Ok(Some(Listed::cut(tags, page, Clone::clone)))
    }

    async fn repositories(&self, page: &Page) -> Result<Listed<String>, Error> {
        self.storage.repositories(page).await
    }
}

impl<S: Storage> RepositoryUpkeep for PullThrough<S> {
    async fn listed_tags(&self, of: &Repository) -> Result<Vec<ListedTag>, Error> {
        self.storage.listed_tags(of).await
    }

    async fn listed_manifests(&self, of: &Repository) -> Result<Vec<ListedManifest>, Error> {
        self.storage.listed_manifests(of).await
    }

    async fn pulls(&self, of: &Repository, now: SystemTime) -> Result<Pulls, Error> {
        self.storage.pulls(of, now).await
    }

    async fn remove_tag(&self, of: &Repository, tag: &ListedTag) -> Result<Removal, Error> {
        self.storage.remove_tag(of, tag).await
    }

    async fn remove_untagged(&self, of: &Repository, manifest: &ListedManifest) -> Result<Removal, Error> {
        self.storage.remove_untagged(of, manifest).await
    }
}
