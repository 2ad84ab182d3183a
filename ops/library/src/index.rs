//! Telling the index what documents refer to, and making it anew.

use anyhow::Result;
use content::Digest;
use manifests::Document;
use store::Description;

use crate::library::Library;
use crate::used::NOTE;

impl Library {
    /// Tells the index what a document refers to.
    pub fn describe(&self, digest: &Digest, document: &Document) -> Result<(), store::Error> {
        self.store.describe(digest, &description(document))
    }

    /// Tells the index what every document refers to that it does not know, because it is new after a crash.
    pub fn describe_all(&self) -> Result<()> {
        for digest in self.store.documents()? {
            if self.store.is_described(&digest)? || self.store.blob_size(&digest)?.is_none() {
                continue;
            }
            let raw = self.store.read_blob(&digest, manifests::MAX_MANIFEST as u64)?;
            match manifests::Document::parse(&raw) {
                Ok(document) => self.describe(&digest, &document)?,
                Err(error) => tracing::warn!(%digest, "a manifest cannot be read: {error}"),
            }
        }
        Ok(())
    }

    /// Makes the index anew from the files. When models were last used is in the index alone, and is carried over.
    pub fn rebuild(&self) -> Result<store::Rebuilt> {
        let mut used = Vec::new();
        for tag in self.store.tags()? {
            used.extend(self.store.note(NOTE, &tag.digest)?.map(|note| (tag.digest, note)));
        }
        // What is deleted meanwhile would be missing half-way.
        let _guard = self.store.guard();
        let rebuilt = self.store.rebuild(|digest| {
            let raw = self.store.read_blob(digest, manifests::MAX_MANIFEST as u64);
            let document = raw.map_err(anyhow::Error::from).and_then(|raw| Ok(Document::parse(&raw)?));
            Ok::<_, store::Error>(document.map_or_else(
                |error| {
                    tracing::warn!(%digest, "cannot be indexed: {error:#}");
                    store::Description::default()
                },
                |document| description(&document),
            ))
        });
        for (digest, note) in used {
            self.store.set_note(NOTE, &digest, &note)?;
        }
        Ok(rebuilt?)
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
