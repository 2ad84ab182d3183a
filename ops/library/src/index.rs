//! Telling the index what documents refer to, and making it anew.

use anyhow::Result;
use content::Digest;
use manifests::Document;
use store::Description;

use crate::library::Library;

impl Library {
    /// Tells the index what a document refers to.
    pub fn describe(&self, digest: &Digest, document: &Document) {
        self.store.describe(digest, &description(document));
    }

    /// Mends the index where it has failed, and tells it of every document that it lacks. To be called often: it costs nothing
    /// where nothing is wrong.
    ///
    /// # Errors
    /// Those of [`store::Store::mend_index`].
    pub fn mend_index(&self) -> Result<(), store::Error> {
        self.store.mend_index(|digest| self.description_of(digest))
    }

    /// Makes the index anew from the files.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn rebuild(&self) -> Result<store::Rebuilt> {
        Ok(self.store.rebuild(|digest| self.description_of(digest))?)
    }

    /// What the index is told of a document; `None` where it is not here, or is damaged: then nobody can tell.
    fn description_of(&self, digest: &Digest) -> Result<Option<Description>, store::Error> {
        let error = match self.document(digest) {
            Ok(document) => return Ok(document.as_ref().map(description)),
            Err(error) => error,
        };
        match error.downcast::<store::Error>() {
            Ok(error @ store::Error::Io { .. }) => Err(error),
            Ok(error) => {
                tracing::warn!(%digest, "a manifest cannot be read: {error}");
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(%digest, "a manifest cannot be read: {error:#}");
                Ok(None)
            }
        }
    }

    /// Reads a manifest or an index; `None` where it is not here.
    pub(crate) fn document(&self, digest: &Digest) -> Result<Option<Document>> {
        if self.store.blob_size(digest)?.is_none() {
            return Ok(None);
        }
        let raw = self.store.read_blob(digest, manifests::MAX_MANIFEST as u64)?;
        Ok(Some(Document::parse(&raw)?))
    }
}

/// What the index is told of a document.
pub(crate) fn description(document: &Document) -> Description {
    Description {
        children: document.children().all(),
        subject: document.subject().map(|subject| subject.digest),
        notes: Vec::new(),
    }
}
