//! Marking: finds the blobs that tags, their kept versions, links and leases lead to, and the
//! obstacles to finding them all.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::SystemTime;

use content::Digest;

use crate::links::{self, Link};
use crate::reachable::Reachable;
use crate::{Error, KEPT_VERSIONS, LinkKind, Store, Verified, history, leases, name_table, tags};

/// Maximum size of a manifest in bytes.
const MAX_DOCUMENT: u64 = 4 << 20;

/// The references of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Children {
    /// Documents, which may have references themselves.
    pub documents: Vec<Digest>,
    /// Blobs.
    pub blobs: Vec<Digest>,
}

/// Parses the references of a document; the error is the reason why the bytes are no document.
pub(crate) type ReadChildren<'a> = &'a dyn Fn(&[u8]) -> Result<Children, String>;

/// The result of marking, before anything is deleted.
#[derive(Debug, Default)]
pub(crate) struct Marked {
    pub(crate) reachable: Reachable,
    pub(crate) expired_links: Vec<Link>,
    pub(crate) ended_leases: Vec<PathBuf>,
    /// Blobs that only leases lead to, with the latest expiry.
    pub(crate) leased: HashMap<Digest, SystemTime>,
    /// Files that could not be read. They may lead to more blobs.
    pub(crate) obstacles: Vec<Obstacle>,
}

/// A file that could not be read, and so may lead to blobs that seem unreachable.
#[derive(Debug)]
pub(crate) struct Obstacle {
    pub(crate) error: Error,
    pub(crate) leads_to: LeadsTo,
}

/// The blobs that an obstacle may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeadsTo {
    /// Any document in the store with its references: an unreadable name names one document.
    Documents,
    /// Any blob.
    Anything,
}

impl Store {
    pub(crate) fn mark(&self, now: SystemTime, children: ReadChildren<'_>) -> Marked {
        let mut marked = Marked::default();
        let mut documents = self.named_documents(&mut marked);
        self.mark_leases(now, &mut marked);
        self.mark_links(now, &mut marked, &mut documents);
        let roots: HashSet<Digest> = documents.iter().copied().collect();
        let mut read = HashSet::new();
        while let Some(digest) = documents.pop() {
            marked.reachable.insert(&digest);
            if read.insert(digest) {
                self.mark_document(&digest, roots.contains(&digest), children, &mut marked, &mut documents);
            }
        }
        if marked.obstacles.iter().any(|obstacle| obstacle.leads_to == LeadsTo::Documents) {
            self.mark_every_document(children, &mut marked);
        }
        // Leases are evaluated after the documents: a model that is complete by now may have ended
        // its lease.
        let Marked { reachable, leased, .. } = &mut marked;
        leased.retain(|digest, _| reachable.insert(digest));
        marked
    }

    /// The documents that tags name, and their kept versions.
    fn named_documents(&self, marked: &mut Marked) -> Vec<Digest> {
        let found = tags::walk(&self.0.layout.tags());
        let mut documents: Vec<Digest> = found.tags.iter().map(|tag| tag.digest).collect();
        let (mut unknown, mut damaged) = (found.unreadable, HashSet::new());
        for (name, error) in found.damaged {
            match self.last_named(&name) {
                Ok(last) if !last.is_empty() => documents.extend(last),
                _ => unknown.push(error),
            }
            damaged.insert(name);
        }
        let histories = name_table::walk(&self.0.layout.histories());
        unknown.extend(histories.unreadable);
        // A file that cannot be a tag by its name has no tag: it was put there by mistake.
        for file in histories.named.into_iter().filter(|file| file.check().is_ok()) {
            match self.names().kept_versions(&file.tag()) {
                Ok(kept) => documents.extend(kept),
                // The history was already evaluated above.
                Err(_) if damaged.contains(&file.tag()) => {}
                Err(error) => unknown.push(error),
            }
        }
        let obstacle = |error| Obstacle { error, leads_to: LeadsTo::Documents };
        marked.obstacles.extend(unknown.into_iter().map(obstacle));
        documents
    }

    /// The candidates for the document that an unreadable tag names: the last two entries of its
    /// history, and its kept versions.
    fn last_named(&self, name: &str) -> Result<Vec<Digest>, Error> {
        let entries = history::read(&name_table::path(&self.0.layout.histories(), name)?)?;
        let last = entries.iter().rev().take(KEPT_VERSIONS + 2).map(|entry| entry.digest);
        // Earlier documents may be gone, which is not an error.
        Ok(last.filter(|digest| !matches!(self.blobs().size(digest), Ok(None))).collect())
    }

    fn mark_leases(&self, now: SystemTime, marked: &mut Marked) {
        let found = leases::walk(&self.0.layout.leases(), now);
        for (digest, end) in found.digests {
            let latest = marked.leased.entry(digest).or_insert(end);
            *latest = end.max(*latest);
        }
        marked.ended_leases = found.ended;
        let obstacle = |error| Obstacle { error, leads_to: LeadsTo::Anything };
        marked.obstacles.extend(found.damaged.into_iter().map(obstacle));
    }

    fn mark_links(&self, now: SystemTime, marked: &mut Marked, documents: &mut Vec<Digest>) {
        let found = links::walk(&self.0.layout.links());
        for link in found.links {
            match link.kind {
                LinkKind::Manifest => documents.push(link.digest),
                LinkKind::Blob
                    if links::is_expired(link.modified, now) && !self.0.promises.lock().contains_key(&link.digest) =>
                {
                    marked.expired_links.push(link);
                }
                LinkKind::Blob => {
                    marked.reachable.insert(&link.digest);
                }
            }
        }
        for (kind, error) in found.unreadable {
            let leads_to = if kind == Some(LinkKind::Manifest) { LeadsTo::Documents } else { LeadsTo::Anything };
            marked.obstacles.push(Obstacle { error, leads_to });
        }
    }

    fn mark_document(
        &self,
        digest: &Digest,
        root: bool,
        children: ReadChildren<'_>,
        marked: &mut Marked,
        documents: &mut Vec<Digest>,
    ) {
        // An index may list manifests that were never pushed. Only documents that a name leads to
        // must exist.
        if !root && matches!(self.blobs().size(digest), Ok(None)) {
            return;
        }
        let reason = match self.children_of(digest, children) {
            Ok(found) => {
                marked.reachable.extend(found.blobs);
                documents.extend(found.documents);
                return;
            }
            Err(reason) => reason,
        };
        // An index may also list a blob that is not a document. An intact one is kept like any
        // blob.
        if !root && self.is_other_blob(digest) {
            return;
        }
        if let Some(known) = self.0.index.edges(digest) {
            // Some of these may be documents. Following a plain blob does no harm.
            documents.extend(known);
        } else {
            let error = Error::Unreadable { digest: *digest, reason };
            marked.obstacles.push(Obstacle { error, leads_to: LeadsTo::Anything });
        }
    }

    fn children_of(&self, digest: &Digest, children: ReadChildren<'_>) -> Result<Children, String> {
        let blob = self.blobs().open(digest).map_err(|e| e.to_string())?;
        let raw = blob.sound(digest, MAX_DOCUMENT).map_err(|e| e.to_string())?;
        children(&raw)
    }

    /// Marks all documents in the store with their references: an unreadable name may name any of
    /// them.
    fn mark_every_document(&self, children: ReadChildren<'_>, marked: &mut Marked) {
        let anything = |error| Obstacle { error, leads_to: LeadsTo::Anything };
        let unreadable = self.each_blob(|digest| self.mark_if_document(&digest, children, marked));
        marked.obstacles.extend(unreadable.into_iter().map(anything));
    }

    fn mark_if_document(&self, digest: &Digest, children: ReadChildren<'_>, marked: &mut Marked) {
        let anything = |error| Obstacle { error, leads_to: LeadsTo::Anything };
        match self.blobs().size(digest) {
            Ok(Some(size)) if size <= MAX_DOCUMENT && !marked.reachable.contains(digest) => {}
            Ok(_) => return,
            Err(error) => return marked.obstacles.push(anything(error)),
        }
        // Documents among the children are found by the same walk.
        match self.children_of(digest, children) {
            Ok(found) => marked.reachable.extend(found.blobs.into_iter().chain(found.documents).chain([*digest])),
            Err(_) if self.is_other_blob(digest) => {}
            Err(reason) => match self.0.index.edges(digest) {
                Some(known) => marked.reachable.extend(known.into_iter().chain([*digest])),
                None => marked.obstacles.push(anything(Error::Unreadable { digest: *digest, reason })),
            },
        }
    }

    /// Whether a blob that does not parse as a document is an intact plain blob, and not a damaged
    /// document.
    fn is_other_blob(&self, digest: &Digest) -> bool {
        let large = matches!(self.blobs().size(digest), Ok(Some(size)) if size > MAX_DOCUMENT);
        large || matches!(self.blobs().verify(digest, None, &mut |_| true), Ok(Verified::Good | Verified::InTier))
    }
}
