//! Marking: what tags, their kept versions, links and leases lead to, and what stands in the way of knowing it.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::SystemTime;

use content::Digest;

use crate::links::{self, Link};
use crate::{Error, KEPT_VERSIONS, LinkKind, Store, Verified, history, leases, names, tags};

/// No manifest is larger, in bytes.
const MAX_DOCUMENT: u64 = 4 << 20;

/// What a document refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Children {
    /// Documents that refer to something themselves.
    pub documents: Vec<Digest>,
    /// Blobs.
    pub blobs: Vec<Digest>,
}

/// What a document's bytes refer to, or why they are no document.
pub(crate) type ReadChildren<'a> = &'a dyn Fn(&[u8]) -> Result<Children, String>;

/// What a collection has found out before it deletes anything.
#[derive(Debug, Default)]
pub(crate) struct Marked {
    pub(crate) reachable: HashSet<Digest>,
    pub(crate) expired_links: Vec<Link>,
    pub(crate) ended_leases: Vec<PathBuf>,
    /// What only leases lead to, and when the last of them ends.
    pub(crate) leased: HashMap<Digest, SystemTime>,
    /// What could not be read. It may lead to more.
    pub(crate) obstacles: Vec<Obstacle>,
}

/// Something that could not be read, and so may lead to what seems unreachable.
#[derive(Debug)]
pub(crate) struct Obstacle {
    pub(crate) error: Error,
    pub(crate) leads_to: LeadsTo,
}

/// What an obstacle could lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeadsTo {
    /// Any document that is here, with what that refers to: a name that cannot be read names one.
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
            marked.reachable.insert(digest);
            if read.insert(digest) {
                self.mark_document(&digest, roots.contains(&digest), children, &mut marked, &mut documents);
            }
        }
        if marked.obstacles.iter().any(|obstacle| obstacle.leads_to == LeadsTo::Documents) {
            self.mark_every_document(children, &mut marked);
        }
        // Leases were read before documents were walked: a model that is complete by now may have ended its lease.
        let Marked { reachable, leased, .. } = &mut marked;
        leased.retain(|digest, _| reachable.insert(*digest));
        marked
    }

    /// What tags name, and what they named before.
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
        let histories = names::walk(&self.0.layout.histories());
        unknown.extend(histories.unreadable);
        // Where no tag can be called so there is none: it is something that was put there by mistake.
        for file in histories.named.into_iter().filter(|file| file.check().is_ok()) {
            match self.kept_versions(&file.tag()) {
                Ok(kept) => documents.extend(kept),
                // Its history was looked at above.
                Err(_) if damaged.contains(&file.tag()) => {}
                Err(error) => unknown.push(error),
            }
        }
        let obstacle = |error| Obstacle { error, leads_to: LeadsTo::Documents };
        marked.obstacles.extend(unknown.into_iter().map(obstacle));
        documents
    }

    /// The documents of which a tag that cannot be read names one: what it names is the last or the last but one of its history.
    fn last_named(&self, name: &str) -> Result<Vec<Digest>, Error> {
        let entries = history::read(&names::path(&self.0.layout.histories(), name)?)?;
        let last = entries.iter().rev().take(KEPT_VERSIONS + 2).map(|entry| entry.digest);
        // Earlier ones may be gone, which is no damage.
        Ok(last.filter(|digest| !matches!(self.look(digest), Ok(None))).collect())
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
                    marked.reachable.insert(link.digest);
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
        // Indexes may list manifests that were never sent here; only what a name leads to must be there.
        if !root && matches!(self.look(digest), Ok(None)) {
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
        // An index may also list what is no document. It is whole, so it is kept like any other blob.
        if !root && self.is_other_blob(digest) {
            return;
        }
        if let Some(known) = self.0.index.edges(digest) {
            // Some of them may be documents. Those that are none are looked at in vain.
            documents.extend(known);
        } else {
            let error = Error::Unreadable { digest: *digest, reason };
            marked.obstacles.push(Obstacle { error, leads_to: LeadsTo::Anything });
        }
    }

    fn children_of(&self, digest: &Digest, children: ReadChildren<'_>) -> Result<Children, String> {
        let blob = self.open_unnoted(digest).map_err(|e| e.to_string())?;
        let raw = blob.sound(digest, MAX_DOCUMENT).map_err(|e| e.to_string())?;
        children(&raw)
    }

    /// Marks all that are documents, with what they refer to: one of them may have the name that cannot be read.
    fn mark_every_document(&self, children: ReadChildren<'_>, marked: &mut Marked) {
        let anything = |error| Obstacle { error, leads_to: LeadsTo::Anything };
        let (digests, unreadable) = self.blob_digests();
        marked.obstacles.extend(unreadable.into_iter().map(anything));
        for digest in digests {
            match self.look(&digest) {
                Ok(Some(size)) if size <= MAX_DOCUMENT && !marked.reachable.contains(&digest) => {}
                Ok(_) => continue,
                Err(error) => {
                    marked.obstacles.push(anything(error));
                    continue;
                }
            }
            // Documents among the children are found by themselves.
            match self.children_of(&digest, children) {
                Ok(found) => marked.reachable.extend(found.blobs.into_iter().chain(found.documents).chain([digest])),
                Err(_) if self.is_other_blob(&digest) => {}
                Err(reason) => match self.0.index.edges(&digest) {
                    Some(known) => marked.reachable.extend(known.into_iter().chain([digest])),
                    None => marked.obstacles.push(anything(Error::Unreadable { digest, reason })),
                },
            }
        }
    }

    /// Whether what cannot be read as a document is none, and not a damaged one.
    fn is_other_blob(&self, digest: &Digest) -> bool {
        let large = matches!(self.look(digest), Ok(Some(size)) if size > MAX_DOCUMENT);
        large || matches!(self.verify(digest, None, &mut |_| true), Ok(Verified::Good))
    }
}
