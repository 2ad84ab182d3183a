//! Which documents refer to a blob, and which say something about one. The index knows them; where it does not, the documents are
//! read.

use content::Digest;
use manifests::Document;

use crate::library::Library;

impl Library {
    /// The documents that refer to a blob.
    pub fn referrers(&self, blob: &Digest) -> Vec<Digest> {
        let is_one = |document: &Document| document.children().all().contains(blob);
        self.store.referrers(blob).unwrap_or_else(|| self.search(is_one))
    }

    /// The documents that say something about a blob.
    pub fn about(&self, subject: &Digest) -> Vec<Digest> {
        let is_one = |document: &Document| document.subject().is_some_and(|about| about.digest == *subject);
        self.store.about(subject).unwrap_or_else(|| self.search(is_one))
    }

    /// The documents of which that is so. One that cannot be read is none.
    fn search(&self, is_so: impl Fn(&Document) -> bool) -> Vec<Digest> {
        let documents = self.store.documents().into_iter();
        documents.filter(|digest| matches!(self.document(digest), Ok(Some(document)) if is_so(&document))).collect()
    }

    /// Looks at everything that the parts of a document refer to: under a guard of the store it stays then, as far as it is here.
    pub fn keep_parts(&self, document: &Document) {
        for part in &document.children().manifests {
            // What is not here, or cannot be read, has nothing to keep.
            for need in self.needs(part).unwrap_or_default() {
                let _ = self.store.blob_size(&need.descriptor.digest);
            }
        }
    }
}
