//! Digests of the original files of an imported model: known from the source, or computed by the
//! first export. They are a note beside the manifest, so that the manifest does not depend on how
//! the files arrived. They serve only as an additional check, and losing them has no other
//! consequence.

use std::collections::BTreeMap;

use content::Digest;
use content::operation::{Result, Unclassified};

use crate::library::Library;

/// Kind of the note.
const NOTE: &str = "file-digests";

/// Known digests by file name.
pub type FileDigests = BTreeMap<String, Digest>;

impl Library {
    /// Returns the known digests of a model's files.
    pub fn file_digests(&self, manifest: &Digest) -> FileDigests {
        let note = self.store.notes().get(NOTE, manifest);
        let texts: BTreeMap<String, String> =
            note.and_then(|note| serde_json::from_slice(&note).ok()).unwrap_or_default();
        texts.into_iter().filter_map(|(name, digest)| Some((name, digest.parse().ok()?))).collect()
    }

    /// Stores the known digests of a model's files.
    pub fn record_file_digests(&self, manifest: &Digest, digests: &FileDigests) -> Result<()> {
        let texts: BTreeMap<&String, String> =
            digests.iter().map(|(name, digest)| (name, digest.to_string())).collect();
        self.store.notes().set(NOTE, manifest, &serde_json::to_vec(&texts).internal()?);
        Ok(())
    }
}
