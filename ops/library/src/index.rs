//! Updating the index with the references of documents, and rebuilding it.

use content::Digest;
use content::operation::Result;
use manifests::Document;
use store::Description;

use crate::library::Library;

impl Library {
    /// Records the references of a document in the index.
    pub fn describe(&self, digest: &Digest, document: &Document) {
        self.store.notes().describe(digest, &description(document));
    }

    /// Repairs the index after a failure, and adds every document that it lacks. Call it often: it
    /// does nothing if the index is complete.
    ///
    /// # Errors
    /// The errors of [`store::Store::mend_index`].
    pub fn mend_index(&self) -> Result<(), store::Error> {
        self.store.mend_index(|digest| self.description_of(digest))
    }

    /// Rebuilds the index from the files.
    ///
    /// # Errors
    /// The index cannot be written.
    pub fn rebuild(&self) -> Result<store::Rebuilt> {
        Ok(self.store.rebuild(|digest| self.description_of(digest))?)
    }

    /// Returns the index entry of a document; `None` if it is missing or damaged, since its
    /// references are then unknown.
    fn description_of(&self, digest: &Digest) -> Result<Option<Description>, store::Error> {
        let parsed = match self.sound_bytes(digest) {
            Ok(None) => return Ok(None),
            Ok(Some(raw)) => Document::parse(&raw).map_err(|error| error.to_string()),
            Err(error @ store::Error::Io { .. }) => return Err(error),
            Err(error) => Err(error.to_string()),
        };
        let unreadable = |error| tracing::warn!(%digest, "a manifest cannot be read: {error}");
        Ok(parsed.map_err(unreadable).ok().as_ref().map(description))
    }

    /// Reads a manifest or an index and verifies its digest; `None` if it is missing. The index
    /// decides which blobs are deleted, so it must not be filled from damaged bytes.
    pub(crate) fn sound_document(&self, digest: &Digest) -> Result<Option<Document>> {
        Ok(self.sound_bytes(digest)?.map(|raw| Document::parse(&raw)).transpose()?)
    }

    /// Reads the bytes of a document and verifies their digest; `None` if it is missing.
    fn sound_bytes(&self, digest: &Digest) -> Result<Option<Vec<u8>>, store::Error> {
        let blobs = self.store.blobs();
        if blobs.size(digest)?.is_none() {
            return Ok(None);
        }
        blobs.read_verified(digest, manifests::MAX_MANIFEST as u64).map(Some)
    }

    /// Reads a manifest or an index; `None` if it is missing.
    pub(crate) fn document(&self, digest: &Digest) -> Result<Option<Document>> {
        if self.store.blobs().size(digest)?.is_none() {
            return Ok(None);
        }
        let raw = self.store.blobs().read(digest, manifests::MAX_MANIFEST as u64)?;
        Ok(Some(Document::parse(&raw)?))
    }
}

/// Returns the index entry of a document.
pub(crate) fn description(document: &Document) -> Description {
    Description {
        children: document.children().all(),
        subject: document.subject().map(|subject| subject.digest),
        notes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use content::Descriptor;
    use manifests::{Layer, ManifestBuilder, ModelConfig, ModelRef, media_types};
    use store::{Options, Store};

    use super::*;
    use crate::testing::put;

    #[test]
    fn damaged_bytes_say_nothing_of_what_a_manifest_needs() {
        let folder = tempfile::tempdir().expect("a folder");
        let library = Library::new(Store::open(folder.path(), Options::default()).expect("a store"));
        let store = &library.store;
        let (config, layer) = (ModelConfig::default().to_bytes().expect("a config"), b"template");
        let (_, layer_digest) = (put(store, &config), put(store, layer));
        let manifest = ManifestBuilder {
            config: Descriptor::of(media_types::CONFIG, &config),
            layers: vec![Layer::new(Descriptor::of(media_types::TEMPLATE, layer))],
            annotations: [].into(),
        };
        let raw = manifest.build().expect("a manifest").raw().to_vec();
        let digest = put(store, &raw);
        let name: ModelRef = "m".parse().expect("a name");
        store.names().set(&name.tag_key().expect("a tag"), &digest).expect("a name");
        // Changes the layer's digest: the document still parses, but names another layer.
        let other = Digest::of(b"other").to_string();
        let damaged = String::from_utf8(raw).expect("a text").replace(&layer_digest.to_string(), &other);
        std::fs::remove_file(store.blobs().path(&digest)).expect("damage");
        std::fs::write(store.blobs().path(&digest), damaged).expect("damage");
        library.rebuild().expect("the index is made anew");
        let collected = library.gc();
        assert!(collected.put_off.is_some(), "{collected:?}");
        assert_eq!(store.blobs().size(&layer_digest).expect("a look"), Some(8), "what it needs is not known");
    }
}
