//! Telling the index what documents say, and filling it from the files.

use content::Digest;

use crate::sync::{MutexGuard, PoisonError};
use crate::{Error, Store, links, names};

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
    pub fn rebuild(
        &self,
        describe: impl FnMut(&Digest) -> Result<Option<Description>, Error>,
    ) -> Result<Rebuilt, Error> {
        {
            let _one = self.mending();
            self.0.index.reset();
            self.mend(describe)?;
        }
        let (blobs, documents) = (self.blobs(), self.documents().len() as u64);
        Ok(Rebuilt { blobs: blobs.len() as u64, bytes: blobs.iter().map(|(_, size)| size).sum(), documents })
    }

    /// Opens the index again where it has failed, and fills it where it lacks something. It does nothing where nothing is
    /// wrong: to be called often. `describe` says `None` of what is no document, or is not here.
    ///
    /// # Errors
    /// [`Error::Index`]: what was in its way still is. Else that of the first document or folder that cannot be read now: the
    /// index is filled without it, and does not say that it knows all.
    pub fn mend_index(&self, describe: impl FnMut(&Digest) -> Result<Option<Description>, Error>) -> Result<(), Error> {
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
        for digest in index.take_missed().into_iter().chain(self.documents()) {
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

    /// Why a folder with names of documents cannot be listed, where that is so.
    fn unlisted(&self) -> Option<Error> {
        let tags = names::walk(&self.0.layout.tags()).unreadable.into_iter();
        tags.chain(links::walk(&self.0.layout.links()).unreadable.into_iter().map(|(_, error)| error)).next()
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

    /// The documents that refer to a blob; `None` where the index does not know at the moment.
    pub fn referrers(&self, digest: &Digest) -> Option<Vec<Digest>> {
        self.0.index.referrers(digest)
    }

    /// The documents that say something about a blob; `None` where the index does not know at the moment.
    pub fn about(&self, subject: &Digest) -> Option<Vec<Digest>> {
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
