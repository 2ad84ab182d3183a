//! A registry's storage in memory, with the minimum that the server needs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use axum::body::Bytes;
use content::{Descriptor, Digest, Error, Expected, Ingest, IngestId, Ingester, Memory, Provider};
use manifests::Document;
use registry::server::{
    BlobStorage, BlobStream, Listed, ListedManifest, ListedTag, Lookup, ManifestStorage, NewManifest, Page, Pulls,
    Reference, Removal, Repository, RepositoryUpkeep, windows,
};

/// Repositories over a [`Memory`]. Clones share all content. An upload is lost when its last handle
/// is dropped.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    content: Memory,
    kept: Arc<Mutex<Kept>>,
}

/// Contents of all repositories, keyed by the full repository name.
#[derive(Debug, Default)]
struct Kept {
    blobs: BTreeSet<(String, Digest)>,
    documents: BTreeMap<(String, Digest), Document>,
    tags: BTreeMap<(String, String), Digest>,
}

impl Shelf {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Provider for Shelf {
    async fn stat(&self, digest: &Digest) -> Result<Option<Descriptor>, Error> {
        self.content.stat(digest).await
    }

    async fn read(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, Error> {
        self.content.read(blob, range).await
    }
}

impl Ingester for Shelf {
    type Ingest = <Memory as Ingester>::Ingest;

    async fn ingest(&self, id: &IngestId, expected: Expected) -> Result<Self::Ingest, Error> {
        self.content.ingest(id, expected).await
    }
}

impl BlobStorage for Shelf {
    async fn stream(&self, _: &Repository, blob: &Descriptor, range: Range<u64>) -> Result<BlobStream, Error> {
        windows(self, blob, range, ()).await
    }

    async fn blob(&self, of: &Repository, digest: &Digest, _: Lookup) -> Result<Option<Descriptor>, Error> {
        let has = self.kept().blobs.contains(&(of.to_string(), *digest));
        if has { self.content.stat(digest).await } else { Ok(None) }
    }

    async fn mount(&self, from: Option<&Repository>, to: &Repository, digest: &Digest) -> Result<bool, Error> {
        let mut kept = self.kept();
        let is_there = match from {
            Some(from) => kept.blobs.contains(&(from.to_string(), *digest)),
            None => kept.blobs.iter().any(|(_, own)| own == digest),
        };
        if is_there {
            kept.blobs.insert((to.to_string(), *digest));
        }
        Ok(is_there)
    }

    async fn remove_blob(&self, of: &Repository, digest: &Digest) -> Result<Removal, Error> {
        let mut kept = self.kept();
        let name = of.to_string();
        for ((own, by), document) in &kept.documents {
            if *own == name && document.children().all().contains(digest) {
                return Ok(Removal::Referenced(*by));
            }
        }
        Ok(if kept.blobs.remove(&(name, *digest)) { Removal::Done } else { Removal::NotThere })
    }

    async fn resume(&self, _: &IngestId) -> Result<Option<Self::Ingest>, Error> {
        Ok(None)
    }

    async fn finish(
        &self,
        to: &Repository,
        mut upload: Self::Ingest,
        expected: Expected,
    ) -> Result<(Digest, u64), Error> {
        upload.expect(expected).await?;
        let (digest, size) = upload.commit().await?;
        self.kept().blobs.insert((to.to_string(), digest));
        Ok((digest, size))
    }
}

impl ManifestStorage for Shelf {
    type Announcement = ();

    async fn announce(&self, _: &Repository, _: &[Digest]) -> Result<(), Error> {
        Ok(())
    }

    async fn withdraw(&self, (): ()) -> Result<(), Error> {
        Ok(())
    }

    async fn record_pull(&self, _: &Repository, _: &Digest) -> Result<(), Error> {
        Ok(())
    }

    async fn read_manifest(&self, _: &Repository, digest: &Digest) -> Result<Option<Bytes>, Error> {
        let Some(blob) = self.stat(digest).await? else { return Ok(None) };
        self.read(&blob, 0..blob.size).await.map(Some)
    }

    async fn manifest(&self, of: &Repository, at: &Reference) -> Result<Option<Digest>, Error> {
        let kept = self.kept();
        let name = of.to_string();
        Ok(match at {
            Reference::Tag(tag) => kept.tags.get(&(name, tag.clone())).copied(),
            Reference::Digest(digest) => kept.documents.contains_key(&(name, *digest)).then_some(*digest),
        })
    }

    async fn put_manifest(&self, to: &Repository, manifest: NewManifest, (): &()) -> Result<(), Error> {
        let NewManifest { digest, raw, document, tags, .. } = manifest;
        let mut ingest = self.content.ingest(&IngestId::of(&digest), Expected::Digest(digest)).await?;
        ingest.write(raw).await?;
        ingest.commit().await?;
        let name = to.to_string();
        let mut kept = self.kept();
        kept.documents.insert((name.clone(), digest), document);
        kept.tags.extend(tags.into_iter().map(|tag| ((name.clone(), tag.name), digest)));
        Ok(())
    }

    async fn remove_manifest(&self, of: &Repository, at: &Reference) -> Result<Removal, Error> {
        let mut kept = self.kept();
        let name = of.to_string();
        let removed = match at {
            Reference::Tag(tag) => kept.tags.remove(&(name, tag.clone())).is_some(),
            Reference::Digest(digest) => {
                kept.tags.retain(|(own, _), named| *own != name || *named != *digest);
                kept.documents.remove(&(name, *digest)).is_some()
            }
        };
        Ok(if removed { Removal::Done } else { Removal::NotThere })
    }

    async fn referrers(&self, of: &Repository, subject: &Digest, page: &Page) -> Result<Listed<Digest>, Error> {
        let name = of.to_string();
        let kept = self.kept();
        let about = kept.documents.iter().filter(|((own, _), document)| {
            *own == name && document.subject().is_some_and(|about| about.digest == *subject)
        });
        let mut about: Vec<Digest> = about.map(|((_, digest), _)| *digest).collect();
        about.sort_by_key(Digest::hex);
        Ok(Listed::cut(about, page, Digest::hex))
    }

    async fn tags(&self, of: &Repository, page: &Page) -> Result<Option<Listed<String>>, Error> {
        let name = of.to_string();
        let kept = self.kept();
        let tags: Vec<String> = kept.tags.keys().filter(|(own, _)| *own == name).map(|(_, tag)| tag.clone()).collect();
        let is_known = !tags.is_empty()
            || kept.blobs.iter().any(|(own, _)| *own == name)
            || kept.documents.keys().any(|(own, _)| *own == name);
        Ok(is_known.then(|| Listed::cut(tags, page, Clone::clone)))
    }

    async fn repositories(&self, page: &Page) -> Result<Listed<String>, Error> {
        let kept = self.kept();
        let blobs = kept.blobs.iter().map(|(name, _)| name);
        let names: BTreeSet<&String> = blobs.chain(kept.documents.keys().map(|(name, _)| name)).collect();
        Ok(Listed::cut(names.into_iter().cloned().collect(), page, Clone::clone))
    }
}

/// Nothing has a time here, so nothing is ever old.
impl RepositoryUpkeep for Shelf {
    async fn pulls(&self, _: &Repository, now: SystemTime) -> Result<Pulls, Error> {
        Ok(Pulls { since: now, last: HashMap::new() })
    }

    async fn listed_tags(&self, of: &Repository) -> Result<Vec<ListedTag>, Error> {
        let (kept, own, now) = (self.kept(), of.to_string(), SystemTime::now());
        let tags = kept.tags.iter().filter(|((name, _), _)| *name == own);
        let tags = tags.map(|((_, name), digest)| ListedTag {
            name: name.clone(),
            digest: *digest,
            set: now,
            is_pinned: false,
        });
        Ok(tags.collect())
    }

    async fn listed_manifests(&self, of: &Repository) -> Result<Vec<ListedManifest>, Error> {
        let (kept, own, now) = (self.kept(), of.to_string(), SystemTime::now());
        let manifests = kept.documents.keys().filter(|(name, _)| *name == own);
        let manifests = manifests.map(|(_, digest)| ListedManifest { digest: *digest, pushed: now });
        Ok(manifests.collect())
    }

    async fn remove_tag(&self, of: &Repository, tag: &ListedTag) -> Result<Removal, Error> {
        self.remove_manifest(of, &Reference::Tag(tag.name.clone())).await
    }

    async fn remove_untagged(&self, of: &Repository, manifest: &ListedManifest) -> Result<Removal, Error> {
        self.remove_manifest(of, &Reference::Digest(manifest.digest)).await
    }
}
