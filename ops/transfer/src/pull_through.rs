//! A storage that copies from other registries what its repositories lack, when a client asks for
//! it.
//!
//! ```text
//! tag    ──▶ the registry's digest ──same──▶ the copy
//!                 │ differs                    ▲ unreachable
//!                 └──▶ its manifest, stored ───┘
//! digest ──▶ the copy, or else the registry's manifest, stored
//! blob   ──▶ the copy, or else the registry's bytes: to the client and the storage (`transfers`)
//! ```
//! A manifest is stored before its blobs, each of which is copied when a client reads it. Copies
//! that the other registry has deleted stay.

mod follow;
mod transfers;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use content::operation::{Classified, ErrorClass};
use content::{Descriptor, Digest, Error, Expected, IngestId, Ingester, Provider};
use manifests::{Document, ModelRef};
use registry::client::{Error as RemoteError, Fetcher, Remote, catalog};
use registry::server::{
    BlobStorage, BlobStream, CopiedRegistries, Journal, JournalEntry, Listed, ListedManifest, ListedTag, Lookup,
    ManifestStorage, NewManifest, Page, Reference, Removal, Repository, RepositoryRules, RepositoryUpkeep,
    ServerOptions, Storage,
};

use crate::hosts::Hosts;
use crate::repository_target::RepositoryTarget;
use transfers::Transfers;

/// A storage, and the registries that it copies from. Clones share the transfers in progress.
#[derive(Clone, Debug)]
pub struct PullThrough<S> {
    storage: S,
    copied: Arc<CopiedRegistries>,
    hosts: Hosts,
    rules: Arc<RepositoryRules>,
    journal: Arc<dyn Journal>,
    transfers: Transfers,
}

/// The source of a repository.
struct UpstreamRepository {
    remote: Remote,
    fetcher: Fetcher,
}

impl<S: Storage> PullThrough<S> {
    /// Copies the repositories that the options of the server name to `storage`, as far as its
    /// rules let tags change.
    pub fn new(storage: S, hosts: Hosts, options: &ServerOptions) -> Self {
        let ServerOptions { copied, rules, journal, .. } = options.clone();
        Self { storage, copied, hosts, rules, journal, transfers: Transfers::default() }
    }

    /// The source of a repository; `None` if the repository is not a copy, or if the client may not
    /// cause requests to other registries.
    fn source(&self, of: &Repository) -> Result<Option<UpstreamRepository>, Error> {
        let source = if of.mirrored { None } else { self.copied.source(&of.name) };
        let Some(source) = source else { return Ok(None) };
        let reference: ModelRef =
            format!("{}/{}", source.host, source.name).parse().map_err(|e| Error::Other(Box::new(e)))?;
        let (remote, parallel) = self.hosts.remote(&reference).map_err(|e| Error::Other(e.into_boxed()))?;
        Ok(Some(UpstreamRepository { fetcher: Fetcher::new(remote.clone(), parallel), remote }))
    }

    /// Copies the manifest of a tag or digest, unless another request has just done so.
    async fn copy_manifest(
        &self,
        to: &Repository,
        source: &UpstreamRepository,
        at: &Reference,
    ) -> Result<Digest, Error> {
        let turn = self.transfers.turn(format!("{}:{at}", to.name));
        let _turn = turn.lock().await;
        if let Some(digest) = self.current(to, source, at).await? {
            return Ok(digest);
        }
        let (digest, raw) = source.remote.manifest(&at.to_string()).await.map_err(remote)?;
        let document = Document::parse(&raw).map_err(|e| Error::Other(Box::new(e)))?;
        let tags = match at {
            Reference::Tag(tag) => self.rules.new_tags(&to.name, vec![tag.clone()]),
            Reference::Digest(_) => Vec::new(),
        };
        let announced = self.storage.announce(to, &[]).await?;
        let manifest = NewManifest { digest, raw, document, required: Vec::new(), tags };
        let stored = self.storage.put_manifest(to, manifest, &announced).await;
        self.storage.withdraw(announced).await?;
        stored?;
        self.journal.record(&JournalEntry::copy(&to.name, at, digest));
        Ok(digest)
    }

    /// The digest of a copy that is as new as its source.
    async fn current(
        &self,
        of: &Repository,
        source: &UpstreamRepository,
        at: &Reference,
    ) -> Result<Option<Digest>, Error> {
        let here = self.storage.manifest(of, at).await?;
        match (at, here) {
            (Reference::Tag(tag), Some(here)) => {
                Ok((source.remote.digest(tag).await.map_err(remote)? == Some(here)).then_some(here))
            }
            (_, here) => Ok(here),
        }
    }

    /// Copies the manifests about `subject` that the repository lacks.
    async fn copy_referrers(
        &self,
        of: &Repository,
        source: &UpstreamRepository,
        subject: &Digest,
    ) -> Result<(), Error> {
        for digest in source.remote.referrers(subject).await.map_err(remote)? {
            let at = Reference::Digest(digest);
            if self.storage.manifest(of, &at).await?.is_none() {
                self.copy_manifest(of, source, &at).await?;
            }
        }
        Ok(())
    }
}

/// The error of another registry.
fn remote(error: RemoteError) -> Error {
    match error.class() {
        ErrorClass::Remote(class) => Error::Remote { class, source: Box::new(error) },
        _ => Error::Other(Box::new(error)),
    }
}

/// The copy, if the other registry failed, or the failure if there is no copy. Registries deny
/// access to content that they do not have.
fn or_copy<T>(failed: Error, copy: Option<T>, what: &Repository) -> Result<Option<T>, Error> {
    use content::operation::RemoteClass::{NoAccess, NotFound};
    match (&failed, copy) {
        (Error::Remote { class: NotFound | NoAccess, .. }, copy) => Ok(copy),
        (_, Some(copy)) => {
            tracing::warn!(repository = %what.name, "the copy may be outdated: {failed}");
            Ok(Some(copy))
        }
        (_, None) => Err(failed),
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
        match self.source(of)? {
            Some(source) if here.is_none() => match source.remote.stat(digest).await {
                Ok(found) => Ok(found),
                Err(error) => or_copy(error, None, of),
            },
            _ => Ok(here),
        }
    }

    async fn stream(&self, of: &Repository, blob: &Descriptor, range: Range<u64>) -> Result<BlobStream, Error> {
        let Some(source) = self.source(of)? else { return self.storage.stream(of, blob, range).await };
        if self.storage.blob(of, &blob.digest, Lookup::Read).await?.is_some() {
            return self.storage.stream(of, blob, range).await;
        }
        let target = RepositoryTarget { storage: self.storage.clone(), repository: Arc::new(of.clone()) };
        let transfer = self.transfers.join(target.clone(), source.fetcher, blob, range == (0..blob.size));
        follow::stream(transfer, target, blob.clone(), range).await
    }

    async fn link(&self, blob: &Descriptor) -> Result<Option<String>, Error> {
        match self.storage.link(blob).await {
            // It is at the other registry only.
            Err(Error::BlobNotFound(_)) => Ok(None),
            link => link,
        }
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

    async fn manifest(&self, of: &Repository, at: &Reference) -> Result<Option<Digest>, Error> {
        let Some(source) = self.source(of)? else { return self.storage.manifest(of, at).await };
        let current = match self.current(of, &source, at).await {
            Ok(None) => self.copy_manifest(of, &source, at).await,
            Ok(Some(digest)) => return Ok(Some(digest)),
            Err(error) => Err(error),
        };
        match current {
            Ok(digest) => Ok(Some(digest)),
            Err(error) => {
                let copy = self.storage.manifest(of, at).await?;
                or_copy(error, copy, of)
            }
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
        if let Some(source) = self.source(of)?.filter(|_| page.after.is_none())
            && let Err(error) = self.copy_referrers(of, &source, subject).await
        {
            or_copy(error, Some(()), of)?;
        }
        self.storage.referrers(of, subject, page).await
    }

    /// The tags of the other registry, and the copied ones that it has no more.
    async fn tags(&self, of: &Repository, page: &Page) -> Result<Option<Listed<String>>, Error> {
        let Some(source) = self.source(of)? else { return self.storage.tags(of, page).await };
        let host = source.remote.sources().last().expect("invariant: a remote has a source");
        let mut tags = match catalog::tags(host, source.remote.repository()).await {
            Ok(tags) => tags,
            Err(error) => {
                or_copy(remote(error), Some(()), of)?;
                return self.storage.tags(of, page).await;
            }
        };
        tags.extend(self.storage.listed_tags(of).await?.into_iter().map(|tag| tag.name));
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

    async fn remove_tag(&self, of: &Repository, tag: &ListedTag) -> Result<Removal, Error> {
        self.storage.remove_tag(of, tag).await
    }

    async fn remove_untagged(&self, of: &Repository, manifest: &ListedManifest) -> Result<Removal, Error> {
        self.storage.remove_untagged(of, manifest).await
    }
}
