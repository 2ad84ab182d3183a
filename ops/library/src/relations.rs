//! Which documents refer to a blob, and which say something about one.

use content::Digest;
use manifests::Document;

use crate::library::Library;

impl Library {
    /// The documents that refer to a blob. The index knows them; while it is away, the documents are read.
    pub fn referrers(&self, blob: &Digest) -> Vec<Digest> {
        if self.store.knows_all_documents() {
            return self.store.referrers(blob);
        }
        self.search(|document| document.children().all().contains(blob))
    }

    /// The documents that say something about a blob.
    pub fn about(&self, subject: &Digest) -> Vec<Digest> {
        if self.store.knows_all_documents() {
            return self.store.about(subject);
        }
        self.search(|document| document.subject().is_some_and(|descriptor| descriptor.digest == *subject))
    }

    /// The documents of which that is so. One that cannot be read is none.
    fn search(&self, is_so: impl Fn(&Document) -> bool) -> Vec<Digest> {
        let documents = self.store.documents().into_iter();
        documents.filter(|digest| matches!(self.document(digest), Ok(Some(document)) if is_so(&document))).collect()
    }
}
