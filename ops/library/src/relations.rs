//! Relations between documents: references to a blob, and documents whose subject it is. They come
//! from the index; if it is incomplete, the documents are read.

use content::Digest;
use manifests::Document;
use store::Guard;

use crate::library::Library;

impl Library {
    /// Returns the documents that refer to a blob.
    pub fn referrers(&self, blob: &Digest) -> Vec<Digest> {
        let is_one = |document: &Document| document.children().all().contains(blob);
        self.store.notes().referrers(blob).unwrap_or_else(|| self.search(is_one))
    }

    /// Returns the documents whose subject is a blob.
    pub fn about(&self, subject: &Digest) -> Vec<Digest> {
        let is_one = |document: &Document| document.subject().is_some_and(|about| about.digest == *subject);
        self.store.notes().by_subject(subject).unwrap_or_else(|| self.search(is_one))
    }

    /// Returns the documents that meet a condition. An unreadable document does not.
    fn search(&self, is_so: impl Fn(&Document) -> bool) -> Vec<Digest> {
        let documents = self.store.notes().documents().into_iter();
        documents.filter(|digest| matches!(self.document(digest), Ok(Some(document)) if is_so(&document))).collect()
    }

    /// Keeps the existing blobs that the manifests of an index refer to.
    ///
    /// # Errors
    /// A blob cannot be looked at.
    pub fn keep_manifests(&self, guard: &Guard, document: &Document) -> Result<(), store::Error> {
        for part in &document.children().manifests {
            // A part that is missing or unreadable has no known blobs to keep.
            for need in self.needs(part).unwrap_or_default() {
                guard.keep(&need.descriptor.digest)?;
            }
        }
        Ok(())
    }
}
