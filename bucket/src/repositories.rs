//! Manifests, tags and referrers of repositories.
//!
//! ```text
//! names/NAME                              lists the repository in the catalog
//! repos/NAME/manifests/HEX                the bytes of a manifest
//! repos/NAME/tags/TAG                     the digest that the tag names; empty after its removal
//! repos/NAME/referrers/SUBJECT/HEX        the manifest HEX is about SUBJECT
//! repos/NAME/blobs/HEX                    a link: the repository has the blob
//! repos/NAME/pulls/HEX                    the time of the last pull of the manifest HEX (`pulls`)
//! ```
//! A repository stays in the catalog after its last tag was removed: a storage cannot delete an
//! object on the condition that no one has just used it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use content::{Digest, Error};
use futures_util::{StreamExt, TryStreamExt};
use manifests::Document;
use registry::RepositoryName;
use registry::server::{
    Listed, ListedManifest, ListedTag, ManifestStorage, NewManifest, NewTag, Page, Pulls, Reference, Removal,
    Repository, RepositoryUpkeep, TagChange,
};
use serde::{Deserialize, Serialize};

use crate::intents::Intent;
use crate::keys::{self, RepositoryFolder};
use crate::marked::{document, parse, retry};
use crate::objects::{Objects, Version};
use crate::{Bucket, pulls};

/// Storages round times to seconds, and not in all responses.
const ROUNDED: Duration = Duration::from_secs(1);
/// Number of tags that are read at a time.
const READS: usize = 16;

/// The document of a tag.
#[derive(Debug, Serialize, Deserialize)]
struct TagDocument {
    digest: String,
    nonce: String,
}

/// A tag as it was read.
struct SeenTag {
    /// `None` if the tag does not exist.
    digest: Option<Digest>,
    version: Option<Version>,
    modified: SystemTime,
}

async fn read_tag(objects: &Objects, key: &str) -> Result<SeenTag, crate::Error> {
    let Some(object) = objects.get(key).await? else {
        return Ok(SeenTag { digest: None, version: None, modified: SystemTime::UNIX_EPOCH });
    };
    let digest = if object.bytes.is_empty() {
        None
    } else {
        let tag: TagDocument = parse(key, &object.bytes)?;
        let wrong = |e: content::digest::ParseDigestError| crate::Error::Document {
            key: key.to_owned(),
            reason: e.to_string(),
        };
        Some(tag.digest.parse().map_err(wrong)?)
    };
    Ok(SeenTag { digest, version: Some(object.version), modified: object.modified })
}

/// Sets a tag; returns the digest that it names instead if it may not change.
async fn set_tag(
    objects: &Objects,
    key: &str,
    digest: &Digest,
    change: TagChange,
) -> Result<Option<Digest>, crate::Error> {
    retry(key, || async {
        let seen = read_tag(objects, key).await?;
        match seen.digest {
            // A tag that is set again gets a new time, which retention looks at.
            Some(named) if named == *digest => {}
            Some(named) if change == TagChange::Forbidden => return Ok(Some(Some(named))),
            _ => {}
        }
        let tag = document(&TagDocument { digest: digest.to_string(), nonce: keys::random() });
        Ok(objects.swap(key, seen.version.as_ref(), tag).await?.map(|_| None))
    })
    .await
}

/// Removes a tag if `is_meant` accepts it. Returns whether it was removed.
async fn remove_tag(
    objects: &Objects,
    key: &str,
    is_meant: impl Fn(&Digest, SystemTime) -> bool + Copy,
) -> Result<bool, crate::Error> {
    retry(key, || async {
        let seen = read_tag(objects, key).await?;
        if !seen.digest.is_some_and(|digest| is_meant(&digest, seen.modified)) {
            return Ok(Some(false));
        }
        Ok(objects.swap(key, seen.version.as_ref(), Bytes::new()).await?.map(|_| true))
    })
    .await
}

impl Bucket {
    /// Lists the entries of a folder, each by the last part of its key.
    async fn entries(&self, folder: &str, page: &Page, keep: impl Fn(u64) -> bool) -> Result<Listed<String>, Error> {
        let after = page.after.as_ref().map(|after| format!("{folder}/{after}"));
        let mut listed = self.objects.list(folder, after.as_deref());
        let mut entries = Vec::new();
        while let Some(entry) = listed.try_next().await? {
            if !keep(entry.size) {
                continue;
            }
            if entries.len() == page.most {
                return Ok(Listed { entries, has_more: true });
            }
            entries.push(keys::last(&entry.key).to_owned());
        }
        Ok(Listed { entries, has_more: false })
    }

    /// Whether a repository has, or had, anything.
    async fn is_known(&self, name: &RepositoryName) -> Result<bool, Error> {
        Ok(self.objects.exists(&keys::name(name)).await?)
    }

    async fn remove_tags(&self, of: &RepositoryName, digest: &Digest) -> Result<(), Error> {
        let mut tags = self.objects.list(&RepositoryFolder::Tags.of(of), None);
        while let Some(entry) = tags.try_next().await? {
            if entry.size > 0 {
                remove_tag(&self.objects, &entry.key, |own, _| own == digest).await?;
            }
        }
        Ok(())
    }

    /// Deletes the tags of a manifest, its entry as a referrer, and then the manifest, so that a
    /// deletion that was interrupted can be repeated. A tag that is set meanwhile names a manifest
    /// that does not exist, which readers treat as missing.
    async fn delete_manifest(&self, of: &RepositoryName, digest: &Digest) -> Result<Removal, Error> {
        let key = RepositoryFolder::Manifests.entry(of, &digest.hex());
        let object = self.objects.get(&key).await?;
        self.remove_tags(of, digest).await?;
        let Some(object) = object else { return Ok(Removal::NotThere) };
        self.delete_document(of, digest, &object.bytes).await?;
        Ok(Removal::Done)
    }

    /// Deletes a manifest and its entry as a referrer.
    async fn delete_document(&self, of: &RepositoryName, digest: &Digest, raw: &[u8]) -> Result<(), Error> {
        if let Some(subject) = Document::parse(raw).ok().and_then(|own| own.subject().map(|own| own.digest)) {
            self.objects.delete(&referrer(of, &subject, digest)).await?;
        }
        self.objects.delete(&RepositoryFolder::Manifests.entry(of, &digest.hex())).await?;
        Ok(pulls::forget(&self.objects, of, digest).await?)
    }
}

fn referrer(of: &RepositoryName, subject: &Digest, manifest: &Digest) -> String {
    RepositoryFolder::Referrers.entry(of, &format!("{}/{}", subject.hex(), manifest.hex()))
}

impl ManifestStorage for Bucket {
    type Announcement = Intent;

    async fn announce(&self, to: &Repository, blobs: &[Digest]) -> Result<Intent, Error> {
        Ok(Intent::write(&self.objects, &to.name, blobs).await?)
    }

    async fn withdraw(&self, announcement: Intent) -> Result<(), Error> {
        Ok(announcement.delete(&self.objects).await?)
    }

    async fn read_manifest(&self, of: &Repository, digest: &Digest) -> Result<Option<Bytes>, Error> {
        let Some(of) = Self::own(of) else { return Ok(None) };
        let key = RepositoryFolder::Manifests.entry(of, &digest.hex());
        Ok(self.objects.get(&key).await?.map(|object| object.bytes))
    }

    async fn record_pull(&self, of: &Repository, digest: &Digest) -> Result<(), Error> {
        let Some(of) = Self::own(of) else { return Ok(()) };
        Ok(self.pull_records.record(&self.objects, of, digest).await?)
    }

    async fn manifest(&self, of: &Repository, at: &Reference) -> Result<Option<Digest>, Error> {
        let Some(of) = Self::own(of) else { return Ok(None) };
        match at {
            Reference::Tag(tag) => Ok(read_tag(&self.objects, &RepositoryFolder::Tags.entry(of, tag)).await?.digest),
            Reference::Digest(digest) => {
                let exists = self.objects.exists(&RepositoryFolder::Manifests.entry(of, &digest.hex())).await?;
                Ok(exists.then_some(*digest))
            }
        }
    }

    async fn put_manifest(&self, to: &Repository, manifest: NewManifest, announced: &Intent) -> Result<(), Error> {
        let NewManifest { digest, raw, document, tags, .. } = manifest;
        let to = &to.name;
        let subject = document.subject().map(|subject| referrer(to, &subject.digest, &digest));
        if let Some(referrer) = &subject {
            self.objects.put(referrer, vec![Bytes::new()]).await?;
        }
        self.list_name(to).await?;
        if !announced.is_fresh() {
            return Err(Error::Other("storing the manifest took too long; push it again".into()));
        }
        self.objects.put(&RepositoryFolder::Manifests.entry(to, &digest.hex()), vec![raw]).await?;
        if let Some(referrer) = &subject {
            // A deletion of the same manifest may have removed it meanwhile.
            self.objects.put(referrer, vec![Bytes::new()]).await?;
        }
        for NewTag { name, change } in tags {
            let key = RepositoryFolder::Tags.entry(to, &name);
            if let Some(digest) = set_tag(&self.objects, &key, &digest, change).await? {
                return Err(Error::TagExists { tag: name, digest });
            }
        }
        Ok(())
    }

    async fn remove_manifest(&self, of: &Repository, at: &Reference) -> Result<Removal, Error> {
        let Some(of) = Self::own(of) else { return Ok(Removal::NotThere) };
        match at {
            Reference::Digest(digest) => self.delete_manifest(of, digest).await,
            Reference::Tag(tag) => {
                let removed = remove_tag(&self.objects, &RepositoryFolder::Tags.entry(of, tag), |_, _| true).await?;
                Ok(if removed { Removal::Done } else { Removal::NotThere })
            }
        }
    }

    async fn referrers(&self, of: &Repository, subject: &Digest, page: &Page) -> Result<Listed<Digest>, Error> {
        let Some(of) = Self::own(of) else { return Ok(Listed { entries: Vec::new(), has_more: false }) };
        let folder = RepositoryFolder::Referrers.entry(of, &subject.hex());
        let Listed { entries, has_more } = self.entries(&folder, page, |_| true).await?;
        Ok(Listed { entries: entries.iter().filter_map(|hex| keys::digest(hex)).collect(), has_more })
    }

    async fn tags(&self, of: &Repository, page: &Page) -> Result<Option<Listed<String>>, Error> {
        let Some(of) = Self::own(of) else { return Ok(None) };
        let tags = self.entries(&RepositoryFolder::Tags.of(of), page, |size| size > 0).await?;
        let is_known = !tags.entries.is_empty() || self.is_known(of).await?;
        Ok(is_known.then_some(tags))
    }

    async fn repositories(&self, page: &Page) -> Result<Listed<String>, Error> {
        let page = Page { after: page.after.as_deref().map(keys::escaped), ..*page };
        let Listed { entries, has_more } = self.entries(keys::NAMES, &page, |_| true).await?;
        let names = entries.iter().filter_map(|entry| keys::repository_of(entry)).map(|name| name.to_string());
        Ok(Listed { entries: names.collect(), has_more })
    }
}

impl RepositoryUpkeep for Bucket {
    async fn listed_tags(&self, of: &Repository) -> Result<Vec<ListedTag>, Error> {
        let Some(of) = Self::own(of) else { return Ok(Vec::new()) };
        let reads = self
            .objects
            .list(&RepositoryFolder::Tags.of(of), None)
            .try_filter(|entry| std::future::ready(entry.size > 0))
            .map(|entry| async {
                let entry = entry?;
                let name = keys::last(&entry.key).to_owned();
                let digest = read_tag(&self.objects, &entry.key).await?.digest;
                let tag = digest.map(|digest| ListedTag { name, digest, set: entry.modified, is_pinned: false });
                Ok::<_, crate::Error>(tag)
            })
            .buffered(READS);
        Ok(reads.try_filter_map(|tag| std::future::ready(Ok(tag))).try_collect().await?)
    }

    async fn listed_manifests(&self, of: &Repository) -> Result<Vec<ListedManifest>, Error> {
        let Some(of) = Self::own(of) else { return Ok(Vec::new()) };
        let listed = self.objects.list(&RepositoryFolder::Manifests.of(of), None);
        let manifests = listed.try_filter_map(|entry| {
            let digest = keys::digest(keys::last(&entry.key));
            std::future::ready(Ok(digest.map(|digest| ListedManifest { digest, pushed: entry.modified })))
        });
        Ok(manifests.try_collect().await?)
    }

    async fn pulls(&self, of: &Repository, now: SystemTime) -> Result<Pulls, Error> {
        match Self::own(of) {
            Some(of) => Ok(pulls::read(&self.objects, of, now).await?),
            None => Ok(Pulls { since: now, last: HashMap::new() }),
        }
    }

    async fn remove_tag(&self, of: &Repository, tag: &ListedTag) -> Result<Removal, Error> {
        let Some(of) = Self::own(of) else { return Ok(Removal::NotThere) };
        let key = RepositoryFolder::Tags.entry(of, &tag.name);
        let is_same = |digest: &Digest, set: SystemTime| *digest == tag.digest && set <= tag.set + ROUNDED;
        let removed = remove_tag(&self.objects, &key, is_same).await?;
        Ok(if removed { Removal::Done } else { Removal::NotThere })
    }

    /// A push of the same manifest between the look at its time and the deletion is lost: storages
    /// have no conditional deletion. The push needs three requests for that time.
    async fn remove_untagged(&self, of: &Repository, manifest: &ListedManifest) -> Result<Removal, Error> {
        let Some(name) = Self::own(of) else { return Ok(Removal::NotThere) };
        let key = RepositoryFolder::Manifests.entry(name, &manifest.digest.hex());
        let Some(object) = self.objects.get(&key).await? else { return Ok(Removal::NotThere) };
        // Tags are set after their manifest was written.
        if object.modified > manifest.pushed + ROUNDED {
            return Ok(Removal::NotThere);
        }
        self.delete_document(name, &manifest.digest, &object.bytes).await?;
        Ok(Removal::Done)
    }
}
