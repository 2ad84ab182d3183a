//! Describing documents to the index, and filling it from the files.

use content::Digest;

use crate::sync::{MutexGuard, PoisonError};
use crate::{Error, Notes, Store, links, name_table};

/// Facts about a document, from its owner: references, and notes by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The digests that the document refers to.
    pub children: Vec<Digest>,
    /// The digest that the document is about (OCI `subject`), if it has one.
    pub subject: Option<Digest>,
    /// Derived facts to store, by kind.
    pub notes: Vec<(&'static str, Vec<u8>)>,
}

/// The result of [`Store::rebuild`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Number of blobs.
    pub blobs: u64,
    /// Bytes of the blobs.
    pub bytes: u64,
    /// Number of documents that tags and links name.
    pub documents: u64,
}

impl Store {
    /// Recreates the index from blobs, tags and links. `describe` is called for every document that
    /// tags and links name.
    ///
    /// # Errors
    /// [`Error::Index`] if the index cannot be created. The store works without it, only slower.
    pub fn rebuild(
        &self,
        describe: impl FnMut(&Digest) -> Result<Option<Description>, Error>,
    ) -> Result<Rebuilt, Error> {
        {
            let _one = self.mending();
            self.0.index.reset();
            self.mend(describe)?;
        }
        let (blobs, bytes) = self.blobs().totals();
        Ok(Rebuilt { blobs, bytes, documents: self.notes().documents().len() as u64 })
    }

    /// Recreates the index after a failure, and adds documents that it lacks. It does nothing if
    /// the index is complete, so it can be called often. `describe` returns `None` for a blob that
    /// is no document or does not exist.
    ///
    /// # Errors
    /// [`Error::Index`] if the index cannot be created, or if it changed while it was filled.
    /// Otherwise the error of the first document or folder that cannot be read: the index then has
    /// all other documents, and stays marked as incomplete.
    pub fn mend_index(&self, describe: impl FnMut(&Digest) -> Result<Option<Description>, Error>) -> Result<(), Error> {
        self.0.index.unseal();
        if self.0.index.is_filled() {
            return Ok(());
        }
        let _one = self.mending();
        self.mend(describe)
    }

    fn mending(&self) -> MutexGuard<'_, ()> {
        self.0.mending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mend(&self, mut describe: impl FnMut(&Digest) -> Result<Option<Description>, Error>) -> Result<(), Error> {
        let index = &self.0.index;
        index.mend()?;
        let generation = index.generation();
        let mut unread = self.unlisted();
        for digest in index.take_missed().into_iter().chain(self.notes().documents()) {
            if index.edges(&digest).is_some() {
                continue;
            }
            match describe(&digest) {
                Ok(Some(description)) => index.describe(&digest, &description),
                Ok(None) => {}
                Err(error) => {
                    index.miss(&digest);
                    unread = unread.or(Some(error));
                }
            }
        }
        if let Some(error) = unread {
            return Err(error);
        }
        index.set_filled(generation);
        if index.is_filled() {
            return Ok(());
        }
        Err(Error::Index("it failed, or something was added, while it was filled; it is filled again soon".to_owned()))
    }

    /// The error of the first folder of tags or links that cannot be listed, if any.
    fn unlisted(&self) -> Option<Error> {
        let tags = name_table::walk(&self.0.layout.tags()).unreadable.into_iter();
        tags.chain(links::walk(&self.0.layout.links()).unreadable.into_iter().map(|(_, error)| error)).next()
    }
}

impl Notes<'_> {
    /// Records the references of a document and facts about it.
    pub fn describe(&self, digest: &Digest, description: &Description) {
        self.0.0.index.describe(digest, description);
    }

    /// The note of a kind about a blob. It may be `None` after a crash: derive the fact again.
    pub fn get(&self, kind: &str, about: &Digest) -> Option<Vec<u8>> {
        self.0.0.index.note(kind, about)
    }

    /// Stores a derived fact about a blob. It may be lost at any time.
    pub fn set(&self, kind: &str, about: &Digest, note: &[u8]) {
        self.0.0.index.set_note(kind, about, note);
    }

    /// The documents that refer to a blob; `None` if the index is incomplete at the moment.
    pub fn referrers(&self, digest: &Digest) -> Option<Vec<Digest>> {
        self.0.0.index.referrers(digest)
    }

    /// The documents whose subject is this blob; `None` if the index is incomplete at the moment.
    pub fn by_subject(&self, subject: &Digest) -> Option<Vec<Digest>> {
        self.0.0.index.about(subject)
    }

    /// The documents that tags and links name, sorted.
    pub fn documents(&self) -> Vec<Digest> {
        let linked = self.0.names().linked_documents().into_iter().map(|link| link.digest);
        let mut documents: Vec<Digest> =
            self.0.names().list().into_iter().map(|tag| tag.digest).chain(linked).collect();
        documents.sort_unstable();
        documents.dedup();
        documents
    }
}
