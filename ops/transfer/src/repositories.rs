//! The store as the storage of a registry server: maps repositories to their content.
//!
//! A repository consists of the tags of its name, and of the links that registry clients made
//! (`store`, links). Local models are repositories of the default host: `smollm2` is served as
//! `/v2/library/smollm2/…` and as `/v2/smollm2/…`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::SystemTime;

use bytes::Bytes;
use content::operation::{ErrorClass, OperationError};
use content::{Descriptor, Digest, Error, Expected, Ingest, IngestId, Ingester, Provider};
use library::Library;
use manifests::reference::{DEFAULT_HOST, DEFAULT_NAMESPACE};
use manifests::{MAX_MANIFEST, ModelRef};
use registry::server::{
    BlobStorage, BlobStream, Listed, ListedManifest, ListedTag, Lookup, ManifestStorage, NewManifest, NewTag, Page,
    Pulls, Reference, Removal, Repository, RepositoryUpkeep, TagChange, windows,
};
use store::{BLOB_LINK_LIFE, LinkKind};

use crate::document::store_document;
use crate::upstream::Upstream;

/// The library as the storage of a registry server.
#[derive(Clone, Debug)]
pub struct Repositories {
    /// The library with the store.
    pub library: Library,
    /// The source of missing manifests and blobs, if there is one.
    pub upstream: Option<Upstream>,
}

/// `host/name`, the key of a repository in the store. Names that the command line cannot express
/// are refused, because a user could not remove them.
fn key(repository: &Repository) -> Result<String, Error> {
    let host = repository.namespace.as_deref().unwrap_or(DEFAULT_HOST).to_ascii_lowercase();
    let name = repository.name.as_str();
    let key = if host == DEFAULT_HOST && !name.contains('/') {
        format!("{host}/{DEFAULT_NAMESPACE}/{name}")
    } else {
        format!("{host}/{name}")
    };
    let said = |text: &str| text.parse::<ModelRef>().ok().map(|name| format!("{}/{}", name.host(), name.repository()));
    let shown = key.parse::<ModelRef>().ok().map(|name| name.to_string());
    if said(&key).as_ref() == Some(&key) && shown.and_then(|shown| said(&shown)).as_ref() == Some(&key) {
        return Ok(key);
    }
    let reason = "it reads as another model's name, or a part of it is too long";
    Err(Error::BadName { name: key.chars().take(160).collect(), what: "a repository", reason })
}

/// Whether a document is in a repository. Clients send manifests of an index by digest, so links
/// count as well as tags.
fn has_document(library: &Library, repository: &str, document: &Digest) -> Result<bool, store::Error> {
    Ok(library.names().is_linked(repository, LinkKind::Manifest, document)?
        || library.names().of_repository(repository)?.iter().any(|tag| tag.digest == *document))
}

/// Finds a document of the repository that refers to the blob.
fn referring(library: &Library, repository: &str, blob: &Digest) -> Result<Option<Digest>, store::Error> {
    for document in library.referrers(blob) {
        if has_document(library, repository, &document)? {
            return Ok(Some(document));
        }
    }
    if library.roots().is_empty() {
        return Ok(None);
    }
    // The index does not know the documents of roots.
    for tag in library.names().of_repository(repository)? {
        let is_in_root = library.names().root_of(&tag.name).is_some();
        let has = |needs: Vec<library::RequiredBlob>| needs.iter().any(|need| need.descriptor.digest == *blob);
        if is_in_root && library.needs(&tag.digest).is_ok_and(has) {
            return Ok(Some(tag.digest));
        }
    }
    Ok(None)
}

fn has_blob(library: &Library, repository: &str, blob: &Digest) -> Result<bool, store::Error> {
    let linked = library.names().is_linked(repository, LinkKind::Blob, blob)?;
    Ok(linked || referring(library, repository, blob)?.is_some())
}

fn is_anywhere(library: &Library, blob: &Digest) -> Result<bool, store::Error> {
    if !library.referrers(blob).is_empty() {
        return Ok(true);
    }
    for repository in library.names().linked_repositories() {
        if library.names().is_linked(&repository, LinkKind::Blob, blob)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Repositories {
    /// Runs work that blocks on the disk.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Library) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let library = self.library.clone();
        let done = tokio::task::spawn_blocking(move || work(&library)).await;
        done.map_err(|e| Error::Other(Box::new(e)))?.map_err(Error::from)
    }
}

impl Repositories {
    /// Fetches a blob from the upstream, if a manifest of the repository refers to it.
    async fn fetch_blob(
        &self,
        upstream: &Upstream,
        repository: String,
        digest: Digest,
    ) -> Result<Option<Descriptor>, Error> {
        let name = repository.clone();
        let find = move |library: &Library| match referring(library, &name, &digest)? {
            Some(document) => Ok(library.descriptor(&document, &digest)),
            None => Ok(None),
        };
        let Some(blob) = self.blocking(find).await? else { return Ok(None) };
        upstream.blob(&repository, &blob).await.map_err(other)?;
        Ok(Some(blob))
    }
}

fn other(error: OperationError) -> Error {
    match error.class() {
        ErrorClass::Remote(class) => Error::Remote { class, source: error.into_boxed() },
        _ => Error::Other(error.into_boxed()),
    }
}

impl Provider for Repositories {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, Error> {
        self.library.stat(digest).await
    }

    async fn read(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, Error> {
        self.library.read(blob, range).await
    }
}

impl Ingester for Repositories {
    type Ingest = <Library as Ingester>::Ingest;

    async fn ingest(&self, id: &IngestId, expected: Expected) -> Result<Self::Ingest, Error> {
        self.library.ingest(id, expected).await
    }
}

impl BlobStorage for Repositories {
    async fn stream(&self, _: &Repository, blob: &Descriptor, range: Range<u64>) -> Result<BlobStream, Error> {
        let held = self.library.hold(vec![blob.digest]);
        windows(self, blob, range, held).await
    }

    async fn blob(&self, of: &Repository, digest: &Digest, _: Lookup) -> Result<Option<Descriptor>, Error> {
        let (repository, digest) = (key(of)?, *digest);
        let name = repository.clone();
        let here = self.blocking(move |library| {
            let Some(size) = library.blobs().size(&digest)? else { return Ok(None) };
            if referring(library, &name, &digest)?.is_some() {
                return Ok(Some(Descriptor::blob(digest, size)));
            }
            if !library.names().is_linked(&name, LinkKind::Blob, &digest)? {
                return Ok(None);
            }
            // A client that learns that the blob exists does not send it, so the blob must stay for
            // a while.
            library.leases().promise(&name, &digest, SystemTime::now() + BLOB_LINK_LIFE);
            // An expired link may have been removed in between, so that the blob is not in the
            // repository any more.
            if !library.names().is_linked(&name, LinkKind::Blob, &digest)? {
                return Ok(None);
            }
            Ok(library.blobs().size(&digest)?.map(|_| Descriptor::blob(digest, size)))
        });
        match (here.await?, &self.upstream) {
            (None, Some(upstream)) if !of.mirrored => self.fetch_blob(upstream, repository, digest).await,
            (here, _) => Ok(here),
        }
    }

    async fn mount(&self, from: Option<&Repository>, to: &Repository, digest: &Digest) -> Result<bool, Error> {
        let (from, to, digest) = (from.map(key).transpose()?, key(to)?, *digest);
        self.blocking(move |library| {
            let guard = library.guard();
            let there = guard.keep(&digest)?.is_some()
                && match from {
                    Some(from) => has_blob(library, &from, &digest)?,
                    None => is_anywhere(library, &digest)?,
                };
            if there {
                library.names().link(&to, LinkKind::Blob, &digest)?;
            }
            Ok(there)
        })
        .await
    }

    async fn remove_blob(&self, of: &Repository, digest: &Digest) -> Result<Removal, Error> {
        let (repository, digest) = (key(of)?, *digest);
        self.blocking(move |library| {
            if library.blobs().size(&digest)?.is_none() {
                return Ok(Removal::NotThere);
            }
            if let Some(document) = referring(library, &repository, &digest)? {
                return Ok(Removal::Referenced(document));
            }
            let removed = library.names().unlink(&repository, LinkKind::Blob, &digest)?;
            Ok(if removed { Removal::Done } else { Removal::NotThere })
        })
        .await
    }

    async fn resume(&self, id: &IngestId) -> Result<Option<Self::Ingest>, Error> {
        if !self.library.blobs().has_ingest(id) {
            return Ok(None);
        }
        self.library.ingest(id, Expected::Unknown).await.map(Some)
    }

    async fn finish(
        &self,
        to: &Repository,
        mut upload: Self::Ingest,
        expected: Expected,
    ) -> Result<(Digest, u64), Error> {
        upload.expect(expected).await?;
        // From here until the link is made, nothing refers to the blob.
        let guard = self.blocking(|library| Ok(library.guard())).await?;
        let (digest, size) = upload.commit().await?;
        let repository = key(to)?;
        self.blocking(move |library| {
            let _guard = guard;
            library.names().link(&repository, LinkKind::Blob, &digest)
        })
        .await?;
        Ok((digest, size))
    }
}

impl ManifestStorage for Repositories {
    type Announcement = ();

    /// The guard of [`Self::put_manifest`] protects the blobs.
    async fn announce(&self, _: &Repository, _: &[Digest]) -> Result<(), Error> {
        Ok(())
    }

    async fn withdraw(&self, (): ()) -> Result<(), Error> {
        Ok(())
    }

    async fn read_manifest(&self, _: &Repository, digest: &Digest) -> Result<Option<Bytes>, Error> {
        let Some(blob) = self.stat(digest).await? else { return Ok(None) };
        self.read(&blob, 0..MAX_MANIFEST as u64 + 1).await.map(Some)
    }

    async fn record_pull(&self, _: &Repository, digest: &Digest) -> Result<(), Error> {
        let digest = *digest;
        self.blocking(move |library| {
            library.record_use(&digest, SystemTime::now());
            Ok(())
        })
        .await
    }

    async fn manifest(&self, of: &Repository, at: &Reference) -> Result<Option<Digest>, Error> {
        let (repository, at) = (key(of)?, at.clone());
        let (name, reference) = (repository.clone(), at.to_string());
        let here = self.blocking(move |library| match at {
            Reference::Tag(tag) => library.names().resolve(&format!("{repository}:{tag}")),
            Reference::Digest(digest) => {
                let there = library.blobs().size(&digest)?.is_some() && has_document(library, &repository, &digest)?;
                if there && library.names().is_linked(&repository, LinkKind::Manifest, &digest)? {
                    // Serving a model counts as use, so that it is not pruned as unused.
                    library.record_use(&digest, SystemTime::now());
                }
                Ok(there.then_some(digest))
            }
        });
        match (here.await?, &self.upstream) {
            (None, Some(upstream)) if !of.mirrored => upstream.manifest(&name, &reference).await.map_err(other),
            (here, _) => Ok(here),
        }
    }

    async fn put_manifest(&self, to: &Repository, manifest: NewManifest, (): &()) -> Result<(), Error> {
        let repository = key(to)?;
        self.blocking(move |library| {
            let guard = library.guard();
            let NewManifest { digest, raw, document, required, tags } = manifest;
            // Checked again: blobs may have been collected with a model that was removed meanwhile.
            for blob in required {
                if guard.keep(&blob.digest)?.is_none() {
                    return Err(Error::BlobNotFound(blob.digest).into());
                }
            }
            library.ensure_flat(&digest, &document)?;
            store_document(library, &guard, &digest, &raw)?;
            library.describe(&digest, &document);
            library.keep_manifests(&guard, &document)?;
            library.names().link(&repository, LinkKind::Manifest, &digest)?;
            for NewTag { name, change } in tags {
                let name = format!("{repository}:{name}");
                match change {
                    TagChange::Allowed => library.names().set(&name, &digest)?,
                    TagChange::Forbidden => library.names().set_once(&name, &digest)?,
                }
            }
            Ok(())
        })
        .await
    }

    async fn remove_manifest(&self, of: &Repository, at: &Reference) -> Result<Removal, Error> {
        let (repository, at) = (key(of)?, at.clone());
        self.blocking(move |library| {
            let names: Vec<String> = match &at {
                Reference::Tag(tag) => vec![format!("{repository}:{tag}")],
                Reference::Digest(digest) => {
                    let tags = library.names().of_repository(&repository)?.into_iter();
                    tags.filter(|tag| tag.digest == *digest).map(|tag| tag.name).collect()
                }
            };
            for name in &names {
                if library.names().is_pinned(name)? {
                    return Ok(Removal::Pinned);
                }
            }
            let mut removed = match &at {
                Reference::Tag(_) => false,
                Reference::Digest(digest) => library.names().unlink(&repository, LinkKind::Manifest, digest)?,
            };
            for name in &names {
                removed |= library.names().remove(name)?;
            }
            Ok(if removed { Removal::Done } else { Removal::NotThere })
        })
        .await
    }

    async fn referrers(&self, of: &Repository, subject: &Digest, page: &Page) -> Result<Listed<Digest>, Error> {
        let (repository, subject, page) = (key(of)?, *subject, page.clone());
        self.blocking(move |library| {
            let mut found = Vec::new();
            for document in library.about(&subject) {
                if library.blobs().size(&document)?.is_some() && has_document(library, &repository, &document)? {
                    found.push(document);
                }
            }
            found.sort_by_key(Digest::hex);
            Ok(Listed::cut(found, &page, Digest::hex))
        })
        .await
    }

    async fn tags(&self, of: &Repository, page: &Page) -> Result<Option<Listed<String>>, Error> {
        let (repository, page) = (key(of)?, page.clone());
        self.blocking(move |library| {
            let name = |tag: store::TagEntry| tag.name.rsplit_once(':').map(|(_, tag)| tag.to_owned());
            let mut tags: Vec<String> =
                library.names().of_repository(&repository)?.into_iter().filter_map(name).collect();
            tags.sort();
            let known = !tags.is_empty()
                || !library.names().links(&repository, LinkKind::Manifest)?.is_empty()
                || !library.names().links(&repository, LinkKind::Blob)?.is_empty();
            Ok(known.then(|| Listed::cut(tags, &page, Clone::clone)))
        })
        .await
    }

    async fn repositories(&self, page: &Page) -> Result<Listed<String>, Error> {
        let page = page.clone();
        self.blocking(move |library| {
            let tagged = library.names().search(None, usize::MAX, |_| true).into_iter();
            let tagged = tagged.filter_map(|tag| tag.rsplit_once(':').map(|(name, _)| name.to_owned()));
            let prefix = format!("{DEFAULT_HOST}/");
            let own = |name: String| name.strip_prefix(&prefix).map(str::to_owned);
            let mut names: Vec<String> = tagged.chain(library.names().linked_repositories()).filter_map(own).collect();
            names.sort();
            names.dedup();
            Ok(Listed::cut(names, &page, Clone::clone))
        })
        .await
    }
}

impl RepositoryUpkeep for Repositories {
    async fn listed_tags(&self, of: &Repository) -> Result<Vec<ListedTag>, Error> {
        let repository = key(of)?;
        self.blocking(move |library| {
            let mut tags = Vec::new();
            for tag in library.names().of_repository_here(&repository)? {
                let Some((_, name)) = tag.name.rsplit_once(':') else { continue };
                let is_pinned = library.names().is_pinned(&tag.name)?;
                tags.push(ListedTag { name: name.to_owned(), digest: tag.digest, set: tag.modified, is_pinned });
            }
            tags.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(tags)
        })
        .await
    }

    async fn listed_manifests(&self, of: &Repository) -> Result<Vec<ListedManifest>, Error> {
        let repository = key(of)?;
        self.blocking(move |library| {
            let mut pushed: BTreeMap<Digest, SystemTime> = BTreeMap::new();
            // Local models have a tag and no link.
            for tag in library.names().of_repository_here(&repository)? {
                pushed.entry(tag.digest).and_modify(|time| *time = tag.modified.max(*time)).or_insert(tag.modified);
            }
            for digest in library.names().links(&repository, LinkKind::Manifest)? {
                // The link may have been removed meanwhile.
                if let Some(time) = library.names().linked_at(&repository, LinkKind::Manifest, &digest)? {
                    pushed.insert(digest, time);
                }
            }
            Ok(pushed.into_iter().map(|(digest, pushed)| ListedManifest { digest, pushed }).collect())
        })
        .await
    }

    /// A run of a model on this machine counts as a pull.
    async fn pulls(&self, of: &Repository, now: SystemTime) -> Result<Pulls, Error> {
        let repository = key(of)?;
        let (since, last) = self.blocking(move |library| library.uses(&repository, now)).await?;
        Ok(Pulls { since, last })
    }

    async fn remove_tag(&self, of: &Repository, tag: &ListedTag) -> Result<Removal, Error> {
        let name = format!("{}:{}", key(of)?, tag.name);
        let listed = store::TagEntry { name: name.clone(), digest: tag.digest, modified: tag.set };
        self.blocking(move |library| {
            if library.names().is_pinned(&name)? {
                return Ok(Removal::Pinned);
            }
            let removed = library.names().remove_unchanged(&listed)?;
            Ok(if removed { Removal::Done } else { Removal::NotThere })
        })
        .await
    }

    async fn remove_untagged(&self, of: &Repository, manifest: &ListedManifest) -> Result<Removal, Error> {
        let (repository, manifest) = (key(of)?, manifest.clone());
        self.blocking(move |library| {
            let tags = library.names().of_repository_here(&repository)?;
            if tags.iter().any(|tag| tag.digest == manifest.digest) {
                return Ok(Removal::NotThere);
            }
            let (kind, digest) = (LinkKind::Manifest, &manifest.digest);
            let removed = library.names().unlink_unless_renewed(&repository, kind, digest, manifest.pushed)?;
            Ok(if removed { Removal::Done } else { Removal::NotThere })
        })
        .await
    }
}
