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
    pub fn mend_index(&self) {
        // The store has logged what is in the way.
        let _ = self.store.mend_index(|digest| self.description_of(digest));
    }

    /// Makes the index anew from the files.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn rebuild(&self) -> Result<store::Rebuilt> {
        Ok(self.store.rebuild(|digest| self.description_of(digest))?)
    }

    fn description_of(&self, digest: &Digest) -> Option<Description> {
        match self.document(digest) {
            Ok(document) => document.as_ref().map(description),
            Err(error) => {
                tracing::warn!(%digest, "a manifest cannot be read: {error:#}");
                None
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
