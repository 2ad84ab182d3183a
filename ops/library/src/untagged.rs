//! Documents without a tag. Clients of the registry pushed them into a repository by digest, or the
//! pull-through cache stored them. They do not appear in the list of models, but they use disk
//! space and can be inspected and removed like models.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::time::SystemTime;

use content::Digest;
use content::operation::Result;
use manifests::ModelRef;
use store::LinkedDocument;

use crate::library::Library;
use crate::versions::shown;

/// A document without a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntaggedManifest {
    /// Repository, as `host/repository`.
    pub repository: String,
    /// Digest of the document.
    pub digest: Digest,
    /// Name for display: the repository and the digest.
    pub name: String,
    /// When it was last pushed, pulled through or used.
    pub used: SystemTime,
    /// Bytes of its blobs in the store, including blobs that other documents share.
    pub bytes: u64,
}

impl Library {
    /// Returns every document without a tag, by repository. A document is omitted if another
    /// document in its repository contains it or is its subject, as with signatures.
    pub fn linked(&self) -> Result<Vec<UntaggedManifest>> {
        let tagged: HashSet<(String, Digest)> =
            self.store.names().list_here().into_iter().filter_map(|tag| in_repository(&tag)).collect();
        self.store.names().check()?;
        let documents = self.store.names().linked_documents();
        let here: HashSet<(String, Digest)> =
            documents.iter().map(|link| (link.repository.clone(), link.digest)).chain(tagged.clone()).collect();
        let is_here = |repository: &str, digest: Digest| here.contains(&(repository.to_owned(), digest));
        let (mut linked, parts) = (Vec::new(), OnceCell::new());
        for LinkedDocument { repository, digest, modified } in documents {
            let key = (repository, digest);
            let is_part = || match self.store.notes().referrers(&digest) {
                Some(referrers) => referrers.into_iter().any(|by| is_here(&key.0, by)),
                None => parts.get_or_init(|| self.parts_of(&here)).contains(&key),
            };
            let is_about_another = || {
                let subject =
                    self.document(&digest).ok().flatten().and_then(|document| Some(document.subject()?.digest));
                subject.is_some_and(|subject| is_here(&key.0, subject))
            };
            if tagged.contains(&key) || is_part() || is_about_another() {
                continue;
            }
            let used = self.store.notes().last_use(&digest)?.map_or(modified, |used| used.max(modified));
            let (name, bytes) = (format!("{}@{digest}", unversioned(&key.0)), self.bytes_here(&digest));
            linked.push(UntaggedManifest { repository: key.0, digest, name, used, bytes });
        }
        Ok(linked)
    }

    /// Returns the untagged document that a name with a digest refers to.
    pub fn find_linked(&self, reference: &ModelRef) -> Result<Option<UntaggedManifest>> {
        let Some(digest) = reference.digest().filter(|_| reference.tag().is_none()) else { return Ok(None) };
        let repository = format!("{}/{}", reference.host(), reference.repository());
        let is_it = |linked: &UntaggedManifest| linked.repository == repository && linked.digest == *digest;
        Ok(self.linked()?.into_iter().find(is_it))
    }

    /// Removes a document from its repository. Its blobs stay until the next collection. Returns
    /// `false` if the document is not there, or if it was pushed again or used since `linked` was
    /// read.
    pub fn remove_linked(&self, linked: &UntaggedManifest) -> Result<bool> {
        if self.store.notes().last_use(&linked.digest)?.is_some_and(|used| used > linked.used) {
            return Ok(false);
        }
        self.unlink_document(&linked.repository, &linked.digest, linked.used)
    }

    /// Returns the documents that others in their repository contain, by reading the documents;
    /// used while the index is incomplete.
    fn parts_of(&self, documents: &HashSet<(String, Digest)>) -> HashSet<(String, Digest)> {
        let children = |(repository, digest): &(String, Digest)| {
            let children = self.document(digest).ok().flatten().map(|document| document.children().manifests);
            let part = |digest| (repository.clone(), digest);
            children.unwrap_or_default().into_iter().map(part).collect::<Vec<_>>()
        };
        documents.iter().flat_map(children).collect()
    }

    fn bytes_here(&self, digest: &Digest) -> u64 {
        let needs = self.needs(digest).unwrap_or_default();
        let sizes =
            needs.into_iter().filter_map(|need| self.store.blobs().size(&need.descriptor.digest).ok().flatten());
        sizes.sum()
    }
}

fn in_repository(tag: &store::TagEntry) -> Option<(String, Digest)> {
    Some((tag.name.rsplit_once(':')?.0.to_owned(), tag.digest))
}

/// Returns a repository's name for display; unchanged if it is not a valid model name.
fn unversioned(repository: &str) -> String {
    let name = shown(&format!("{repository}:latest")).ok();
    name.as_deref().and_then(|name| name.strip_suffix(":latest")).unwrap_or(repository).to_owned()
}
