//! What the files hash to that a model was imported from: known from where they came, else found by the first export. A
//! note about the manifest, so that the manifest is the same whichever way the files came. It is a second look only:
//! losing it costs nothing else.

use std::collections::BTreeMap;

use anyhow::Result;
use content::Digest;

use crate::library::Library;

/// The kind of the note.
const NOTE: &str = "file-digests";

/// File names with their digests; those that are known.
pub type FileDigests = BTreeMap<String, Digest>;

impl Library {
    /// What is known of the files of a model.
    pub fn file_digests(&self, manifest: &Digest) -> FileDigests {
        let note = self.store.note(NOTE, manifest);
        let texts: BTreeMap<String, String> =
            note.and_then(|note| serde_json::from_slice(&note).ok()).unwrap_or_default();
        texts.into_iter().filter_map(|(name, digest)| Some((name, digest.parse().ok()?))).collect()
    }

    /// Keeps what is known of the files of a model.
    pub fn record_file_digests(&self, manifest: &Digest, digests: &FileDigests) -> Result<()> {
        let texts: BTreeMap<&String, String> =
            digests.iter().map(|(name, digest)| (name, digest.to_string())).collect();
        self.store.set_note(NOTE, manifest, &serde_json::to_vec(&texts)?);
        Ok(())
    }
}
