//! Removing documents that clients pushed from a repository, with the blobs that only they need
//! there.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::SystemTime;

use content::Digest;
use content::operation::Result;
use manifests::Document;
use store::LinkKind;

use crate::library::Library;

impl Library {
    /// Removes a document from its repository, and all parts that no other document there needs. A
    /// document that was pushed again after `until` stays. Returns `false` if it is not there. The
    /// bytes stay until the next collection.
    pub(crate) fn unlink_document(&self, repository: &str, document: &Digest, until: SystemTime) -> Result<bool> {
        let linked = self.store.names().linked_at(repository, LinkKind::Manifest, document)?;
        if !self.store.names().unlink_unless_renewed(repository, LinkKind::Manifest, document, until)? {
            return Ok(false);
        }
        let tagged = self.store.names().of_repository_here(repository)?.into_iter().map(|tag| tag.digest).collect();
        // Clients push a document after its parts, so parts pushed after it belong to another
        // document.
        let until = linked.unwrap_or(until);
        Unlinking { library: self, repository, tagged, until, needed: RefCell::default() }.parts_of(document)?;
        Ok(true)
    }
}

struct Unlinking<'a> {
    library: &'a Library,
    repository: &'a str,
    tagged: HashSet<Digest>,
    until: SystemTime,
    /// Blobs that the documents of the repository refer to; read from the documents only if the
    /// index is incomplete.
    needed: RefCell<Option<HashSet<Digest>>>,
}

impl Unlinking<'_> {
    /// Removes the links of all blobs that a removed document refers to, directly or through other
    /// documents.
    fn parts_of(&self, document: &Digest) -> Result<()> {
        let mut left = vec![*document];
        while let Some(document) = left.pop() {
            left.extend(self.direct_parts_of(&document)?);
        }
        Ok(())
    }

    /// Removes the links of the blobs that one document refers to; returns the documents among
    /// them.
    fn direct_parts_of(&self, document: &Digest) -> Result<Vec<Digest>> {
        let mut left = Vec::new();
        // The references of an unreadable document are unknown. Links of blobs expire; links of
        // manifests can be listed and removed.
        let Ok(Some(document)) = self.library.document(document) else { return Ok(left) };
        let (store, repository) = (&self.library.store, self.repository);
        let children = document.children();
        for blob in &children.blobs {
            if !self.is_needed(blob)? {
                store.names().unlink_unless_renewed(repository, LinkKind::Blob, blob, self.until)?;
            }
        }
        for part in &children.manifests {
            if !self.tagged.contains(part)
                && !self.is_needed(part)?
                && store.names().unlink_unless_renewed(repository, LinkKind::Manifest, part, self.until)?
            {
                self.needed.replace(None);
                left.push(*part);
            }
        }
        Ok(left)
    }

    /// Whether a document of the repository refers to the part.
    fn is_needed(&self, part: &Digest) -> Result<bool> {
        let store = &self.library.store;
        let Some(referrers) = store.notes().referrers(part) else {
            if self.needed.borrow().is_none() {
                self.needed.replace(Some(self.read_needed()?));
            }
            return Ok(self.needed.borrow().as_ref().is_some_and(|needed| needed.contains(part)));
        };
        for by in referrers {
            if self.tagged.contains(&by) || store.names().is_linked(self.repository, LinkKind::Manifest, &by)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read_needed(&self) -> Result<HashSet<Digest>> {
        let linked = self.library.store.names().links(self.repository, LinkKind::Manifest)?;
        let documents = linked.iter().chain(&self.tagged).filter_map(|digest| self.library.document(digest).ok()?);
        Ok(documents.flat_map(|document: Document| document.children().all()).collect())
    }
}
