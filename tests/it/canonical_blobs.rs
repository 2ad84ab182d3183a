//! Compares the blobs of an import with the results of an independent script: names, sizes and
//! digests agree for every model.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

use content::Digest;
use import::{BlobSink, Target};
use manifests::media_types;

use crate::support::{BufferSink, entries, fixtures, import_model, name, shared, skip};

/// The folders of MLX models that are not quantized.
const PLAIN: [&str; 2] = ["tiny-llama-bf16", "tiny-llama-tied-bf16"];

/// The size of a layer in bytes, and its digest.
type Blob = (u64, String);

/// An import target that records digests and sizes, and keeps no bytes.
#[derive(Default)]
struct Digests(Mutex<HashMap<Digest, u64>>);

impl Digests {
    fn known(&self) -> MutexGuard<'_, HashMap<Digest, u64>> {
        self.0.lock().expect("nobody panicked with the digests in hand")
    }
}

impl Target for Digests {
    fn may_have(&self, _name: &str, size: u64) -> bool {
        self.known().values().any(|known| *known == size)
    }

    fn has(&self, digest: &Digest, _size: u64) -> Result<bool, content::Error> {
        Ok(self.known().contains_key(digest))
    }

    fn begin(&self, size: u64) -> Result<Box<dyn BlobSink + '_>, content::Error> {
        Ok(Box::new(BufferSink::new(size, move |digest, _| self.known().insert(digest, size).is_none())))
    }
}

#[test]
fn hugging_face_models_have_the_blobs_that_the_script_says() {
    let test = "canonical_blobs::hugging_face_models_have_the_blobs_that_the_script_says";
    let Some((folder, script)) = folder_and_script(test, "hf") else { return };
    let mut models = entries(&folder);
    models.retain(|model| model.join("model").is_dir());
    assert!(models.len() >= 42, "only {} models were found", models.len());
    for model in models {
        check(&model.join("model"), &script, &name(&model));
    }
}

#[test]
fn plain_mlx_models_have_the_blobs_that_the_script_says() {
    let test = "canonical_blobs::plain_mlx_models_have_the_blobs_that_the_script_says";
    let Some((folder, script)) = folder_and_script(test, "mlx") else { return };
    for model in PLAIN {
        let copy = without_golden(&folder.join(model));
        check(copy.path(), &script, model);
    }
}

fn folder_and_script(test: &str, folder: &str) -> Option<(PathBuf, PathBuf)> {
    let folder = fixtures(test, folder)?;
    let version = Command::new("python3").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        skip(test, "there is no python3 to run canonical_blobs.py with");
        return None;
    }
    Some((folder, shared()?.join("scripts/canonical_blobs.py")))
}

/// Copies a model's folder without the reference outputs, which lie in the same folder.
pub(crate) fn without_golden(model: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for file in entries(model) {
        let name = name(&file);
        if !name.starts_with("golden") {
            fs::copy(&file, copy.path().join(&name)).unwrap_or_else(|e| panic!("cannot copy `{name}`: {e}"));
        }
    }
    copy
}

fn check(model: &Path, script: &Path, name: &str) {
    let expected = expected(model, script);
    assert!(!expected.is_empty(), "{name}: the script found no tensors");
    let found = imported(model, name);
    let wrong: BTreeMap<&String, [Option<&Blob>; 2]> = expected
        .keys()
        .chain(found.keys())
        .map(|layer| (layer, [expected.get(layer), found.get(layer)]))
        .filter(|(_, [expected, found])| expected != found)
        .collect();
    assert!(wrong.is_empty(), "{name}: expected and found differ: {wrong:#?}");
}

/// Returns the blobs that the script computes.
fn expected(model: &Path, script: &Path) -> BTreeMap<String, Blob> {
    let output = Command::new("python3").arg(script).arg(model).output().expect("python3 runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "canonical_blobs.py {}: {complaint}", model.display());
    let layers: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&output.stdout).expect("the script writes a JSON object");
    layers
        .into_iter()
        .map(|(layer, facts)| {
            let size = facts["size"].as_u64().expect("a size");
            let digest = facts["digest"].as_str().expect("a digest").to_owned();
            (layer, (size, digest))
        })
        .collect()
}

/// Returns the blobs that the import writes.
fn imported(model: &Path, name: &str) -> BTreeMap<String, Blob> {
    let imported = import_model(model, &Digests::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let tensors: Vec<_> = imported.layers.iter().filter(|layer| *layer.media_type() == media_types::TENSOR).collect();
    let blobs: BTreeMap<String, Blob> = tensors
        .iter()
        .map(|layer| {
            let name = layer.name().expect("a tensor's layer has a name").to_owned();
            (name, (layer.size(), layer.digest().to_string()))
        })
        .collect();
    assert_eq!(blobs.len(), tensors.len(), "{name}: two layers of one name");
    assert_eq!((imported.new + imported.shared).blobs, blobs.len() as u64, "{name}: number of blobs");
    blobs
}
