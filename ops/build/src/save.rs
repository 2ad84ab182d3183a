//! Saving models as an OCI image layout in a tar. The same models give the same bytes, because the
//! tar contains no times and no owners.
//!
//! ```text
//! oci-layout              {"imageLayoutVersion":"1.0.0"}
//! index.json              the manifests, each with the full name of the model
//! blobs/sha256/<hex>      manifests, configs and layers, sorted
//! ```

use std::collections::{BTreeMap, HashSet};
use std::io::Write;

use archive::Writer;
use content::ensure;
use content::operation::{Context, Result, Unclassified};
use content::{Digest, Hasher};
use library::Library;
use manifests::{ModelRef, annotations, media_types};
use serde_json::{Map, Value, json};
use store::Hold;

use crate::image_layout::{INDEX_FILE, LAYOUT_FILE, MARKER, path};

/// Buffer size for blobs, in bytes.
const PIECE: u64 = 1 << 20;

/// Content that the receiver already has.
#[derive(Clone, Debug)]
pub enum Since {
    /// Nothing.
    Nothing,
    /// A model.
    Model(ModelRef),
    /// The blobs of an earlier archive.
    Archive {
        /// The manifest of its first model.
        manifest: Digest,
        /// All its blobs.
        blobs: Vec<Digest>,
    },
}

/// An archive that is ready to be written. All its blobs exist, and are kept while it lives.
#[derive(Debug)]
pub struct Archive {
    library: Library,
    index: Vec<u8>,
    blobs: BTreeMap<Digest, u64>,
    _holds: Vec<Hold>,
}

impl Archive {
    /// Plans the content of the archive.
    pub fn plan(library: &Library, models: &[ModelRef], since: &Since) -> Result<Self> {
        let (base, there) = match since {
            Since::Nothing => (None, HashSet::new()),
            Since::Archive { manifest, blobs } => (Some(*manifest), blobs.iter().copied().collect()),
            Since::Model(reference) => {
                let model = library.find(reference)?;
                let needs = library.needs(model.manifest.digest())?.into_iter();
                (Some(*model.manifest.digest()), needs.map(|need| need.descriptor.digest).collect::<HashSet<_>>())
            }
        };
        ensure!(
            !models.is_empty(),
            manifests::Error::Malformed { what: "the request", reason: "it names no model to save".to_owned() }
        );
        let (mut blobs, mut listed, mut holds) = (BTreeMap::new(), Vec::new(), Vec::new());
        for reference in models {
            let (model, hold) = library.find_held(reference)?;
            holds.push(hold);
            library.ensure_whole(&model)?;
            for need in library.needs(model.manifest.digest())? {
                // Manifests are always included, because the index refers to them.
                if need.layer == "manifest" || !there.contains(&need.descriptor.digest) {
                    blobs.insert(need.descriptor.digest, need.descriptor.size);
                }
            }
            let name: ModelRef = model.name.parse()?;
            let name = name.tag_key().context("invariant: a model is found by its tag")?;
            listed.push(json!({
                "mediaType": model.manifest.media_type().as_str(),
                "digest": model.manifest.digest().to_string(),
                "size": model.manifest.raw().len(),
                "annotations": {annotations::REF_NAME: name},
            }));
        }
        Ok(Self { library: library.clone(), index: index(listed, base)?, blobs, _holds: holds })
    }

    /// Returns the size of the whole archive in bytes.
    pub fn size(&self) -> u64 {
        let blobs = self.blobs.iter().map(|(digest, size)| archive::member_size(&path(digest), *size));
        archive::member_size(LAYOUT_FILE, MARKER.len() as u64)
            + archive::member_size(INDEX_FILE, self.index.len() as u64)
            + blobs.sum::<u64>()
            + archive::END_SIZE
    }

    /// Writes the archive. Each blob is hashed while it is written; a damaged blob aborts the
    /// archive.
    pub fn write(&self, output: &mut dyn Write) -> Result<()> {
        let mut tar = Writer::new(output);
        tar.member(LAYOUT_FILE, MARKER.len() as u64)?;
        tar.write_all(MARKER.as_bytes())?;
        tar.member(INDEX_FILE, self.index.len() as u64)?;
        tar.write_all(&self.index)?;
        for (digest, size) in &self.blobs {
            tar.member(&path(digest), *size)?;
            self.write_blob(digest, *size, &mut tar)?;
        }
        tar.finish()?;
        Ok(())
    }

    fn write_blob(&self, digest: &Digest, size: u64, output: &mut dyn Write) -> Result<()> {
        let blob = self.library.open(digest);
        let failed = || format!("cannot read blob `{digest}`");
        blob.read_exact_at(&mut [], 0).with_context(failed)?;
        ensure!(blob.size() == size, "blob `{digest}` has {} bytes, expected {size}; run `lode fsck`", blob.size());
        let mut hasher = Hasher::new(digest.algorithm());
        let mut buffer = vec![0; size.min(PIECE) as usize];
        let mut at = 0;
        while at < size {
            let piece = &mut buffer[..(size - at).min(PIECE) as usize];
            blob.read_exact_at(piece, at).with_context(failed)?;
            hasher.update(piece);
            output.write_all(piece)?;
            at += piece.len() as u64;
        }
        let actual = hasher.finish();
        ensure!(actual == *digest, "blob `{digest}` hashes to `{actual}`; run `lode fsck`");
        Ok(())
    }
}

fn index(manifests: Vec<Value>, base: Option<Digest>) -> Result<Vec<u8>> {
    let mut index = Map::from_iter([
        ("schemaVersion".to_owned(), json!(2)),
        ("mediaType".to_owned(), json!(media_types::INDEX.as_str())),
        ("manifests".to_owned(), Value::Array(manifests)),
    ]);
    if let Some(base) = base {
        index.insert("annotations".to_owned(), json!({annotations::SAVED_SINCE: base.to_string()}));
    }
    serde_json::to_vec(&index).internal()
}
