//! Telling the index what documents say, and filling it from the files.

use content::Digest;

use crate::{Error, Store};

/// What the owner of a document says of it: what it refers to, and notes by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// What the document refers to.
    pub children: Vec<Digest>,
    /// What the document says something about, where it is such a one.
    pub subject: Option<Digest>,
    /// Derived facts to keep, by kind.
    pub notes: Vec<(&'static str, Vec<u8>)>,
}

/// What [`Store::rebuild`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Blobs.
    pub blobs: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Documents that tags and links name.
    pub documents: u64,
}

impl Store {
    /// Makes the index anew from blobs, tags and links. `describe` is asked about every document that those name.
    ///
    /// # Errors
    /// [`Error::Index`]: it cannot be made. Everything works without it, only slower.
    pub fn rebuild(&self, describe: impl FnMut(&Digest) -> Option<Description>) -> Result<Rebuilt, Error> {
        self.0.index.reset();
        let documents = self.mend_index(describe)?;
        let blobs = self.blobs();
        Ok(Rebuilt { blobs: blobs.len() as u64, bytes: blobs.iter().map(|(_, size)| size).sum(), documents })
    }

    /// Opens the index again where it has failed, and fills it where it lacks something; says how many documents were
    /// described. It does nothing where nothing is wrong: to be called often. `describe` says `None` of what it cannot read.
    ///
    /// # Errors
    /// [`Error::Index`]: what was in its way still is.
    pub fn mend_index(&self, mut describe: impl FnMut(&Digest) -> Option<Description>) -> Result<u64, Error> {
        let index = &self.0.index;
        if index.is_filled() {
            return Ok(0);
        }
        index.mend()?;
        let generation = index.generation();
        let mut described = 0;
        for digest in index.take_missed().into_iter().chain(self.documents()) {
            if index.edges(&digest).is_none()
                && let Some(description) = describe(&digest)
            {
                index.describe(&digest, &description);
                described += 1;
            }
        }
        index.set_filled(generation);
        Ok(described)
    }

    /// Whether the index was told of every document: only then does [`Store::referrers`] know all.
    pub fn knows_all_documents(&self) -> bool {
        self.0.index.is_filled()
    }

    /// Records what a document refers to and what is known of it.
    pub fn describe(&self, digest: &Digest, description: &Description) {
        self.0.index.describe(digest, description);
    }

    /// The note of a kind about a blob. `None` is also the answer after a crash: derive it again.
    pub fn note(&self, kind: &str, about: &Digest) -> Option<Vec<u8>> {
        self.0.index.note(kind, about)
    }

    /// Keeps a derived fact about a blob. It may be lost at any time.
    pub fn set_note(&self, kind: &str, about: &Digest, note: &[u8]) {
        self.0.index.set_note(kind, about, note);
    }

    /// The documents that refer to a blob, as far as they were described.
    pub fn referrers(&self, digest: &Digest) -> Vec<Digest> {
        self.0.index.referrers(digest)
    }

    /// The documents that say something about a blob, as far as they were described.
    pub fn about(&self, subject: &Digest) -> Vec<Digest> {
        self.0.index.about(subject)
    }

    /// The documents that tags and links name, sorted.
    pub fn documents(&self) -> Vec<Digest> {
        let linked = self.linked_documents().into_iter().map(|link| link.digest);
        let mut documents: Vec<Digest> = self.tags().into_iter().map(|tag| tag.digest).chain(linked).collect();
        documents.sort_unstable();
        documents.dedup();
        documents
    }
}
