//! Imports into a real store: what is there already is not written again, and the source files can be had back bit
//! for bit.

use std::collections::{BTreeSet, HashSet};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use content::{Digest, Expected, IngestId, MediaType};
use formats::safetensors::Header;
use import::{Fill, Imported, Origin, OriginFile, Target};
use manifests::{Layer, media_types};
use store::{Options, Store};

use crate::support::{files, fixtures, import_model, json, list, models, name, read, skip};

/// Files that can be read but not imported, with what the refusal must say.
const REFUSED: [(&str, &str); 6] = [
    ("ambiguous/big_endian_v2.gguf", "big-endian"),
    ("meta/v3_be.gguf", "big-endian"),
    ("meta/all_value_types_be.gguf", "big-endian"),
    ("ambiguous/tensor_name_empty.gguf", "without a name"),
    ("ambiguous/kv_count_reinterpreted.gguf", "not a readable GGUF file"),
    ("ambiguous/tensor_count_reinterpreted.gguf", "not a readable GGUF file"),
];

/// The types of layers that are whole files of the source.
const SIDE_FILES: [MediaType; 3] = [media_types::JSON, media_types::LICENSE, media_types::FILE];

/// A store of its own for each test.
struct StoreTarget {
    store: Store,
    sizes: Mutex<HashSet<u64>>,
    started: AtomicU64,
    /// Goes after the store.
    _folder: tempfile::TempDir,
}

impl StoreTarget {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::open(folder.path(), Options::default()).expect("a new store opens");
        Self { store, sizes: Mutex::default(), started: AtomicU64::new(0), _folder: folder }
    }

    fn sizes(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.sizes.lock().expect("nobody panicked with the sizes in hand")
    }

    /// The bytes of a layer.
    fn read(&self, layer: &Layer) -> Vec<u8> {
        let bytes = self.store.read_blob(layer.digest(), layer.size()).expect("a layer's blob is there");
        assert_eq!(bytes.len() as u64, layer.size(), "size of {:?}", layer.name());
        bytes
    }

    fn import(&self, path: &Path) -> Imported {
        let imported = import_model(path, self).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let unfinished = self.store.ingest_ids().expect("ingests can be listed");
        assert!(unfinished.is_empty(), "{}: left behind {unfinished:?}", path.display());
        imported
    }
}

impl Target for StoreTarget {
    fn may_have(&self, _name: &str, size: u64) -> bool {
        self.sizes().contains(&size)
    }

    fn has(&self, digest: &Digest, _size: u64) -> Result<bool, Box<dyn Error + Send + Sync>> {
        Ok(self.store.blob_size(digest)?.is_some())
    }

    fn put(&self, size: u64, fill: &mut Fill<'_>) -> Result<(Digest, bool), Box<dyn Error + Send + Sync>> {
        let id = IngestId::parse(&format!("import-{}", self.started.fetch_add(1, Ordering::Relaxed)))?;
        let mut ingest = self.store.start_ingest(&id, Expected::Size(size))?;
        fill(&mut ingest)?;
        let digest = ingest.digest();
        if self.store.blob_size(&digest)?.is_some() {
            ingest.cancel()?;
            return Ok((digest, false));
        }
        ingest.commit()?;
        self.sizes().insert(size);
        Ok((digest, true))
    }
}

#[test]
fn a_second_import_writes_nothing() {
    let Some(folder) = fixtures("import_store::a_second_import_writes_nothing", "hf/llama/model") else { return };
    let target = StoreTarget::new();
    let first = target.import(&folder);
    let blobs = target.store.blobs().expect("blobs can be listed");
    assert!(first.new_blobs > 0 && first.shared_blobs == 0, "{} new, {} shared", first.new_blobs, first.shared_blobs);
    let second = target.import(&folder);
    assert_eq!((second.new_blobs, second.new_bytes), (0, 0));
    assert_eq!((second.shared_blobs, second.shared_bytes), (first.new_blobs, first.new_bytes));
    assert_eq!(second.layers, first.layers);
    assert_eq!(target.store.blobs().expect("blobs can be listed"), blobs);
}

#[test]
fn a_fine_tune_shares_what_it_did_not_change() {
    let test = "import_store::a_fine_tune_shares_what_it_did_not_change";
    let Some(folder) = fixtures(test, "hf") else { return };
    let tuned = folder.join("qwen3_moe-ft");
    let golden = json(&tuned.join("golden.json"));
    let changed: Vec<&str> = list(&golden["changed_tensors"]).iter().filter_map(serde_json::Value::as_str).collect();
    let files = import::locate(&tuned.join("model")).expect("the model is there");
    let inventory = import::inventory(&files).expect("its headers can be read");
    assert_eq!((changed.len(), inventory.tensors.len()), (30, 102));
    let all: BTreeSet<&str> = inventory.tensors.iter().map(|tensor| layer_of(&tensor.name)).collect();
    let changed: BTreeSet<&str> = changed.into_iter().map(layer_of).collect();

    let target = StoreTarget::new();
    let base = target.import(&folder.join("qwen3_moe/model"));
    let tuned = target.import(&tuned.join("model"));
    let before: HashSet<&Digest> = tensors(&base).map(Layer::digest).collect();
    let new = tensors(&tuned).filter(|layer| !before.contains(layer.digest()));
    let new: BTreeSet<&str> = new.filter_map(Layer::name).collect();
    assert_eq!(new, changed);
    let found: BTreeSet<&str> = tensors(&tuned).filter_map(Layer::name).collect();
    assert_eq!(found, all);
    assert_eq!(tuned.new_blobs, changed.len() as u64);
    assert_eq!(tuned.shared_blobs, (all.len() - changed.len()) as u64);
}

/// The layer of a tensor of this model: the experts of a layer share one.
fn layer_of(tensor: &str) -> &str {
    const EXPERTS: &str = ".mlp.experts";
    match tensor.split_once(".mlp.experts.") {
        Some((before, _)) => &tensor[..before.len() + EXPERTS.len()],
        None => tensor,
    }
}

fn tensors(imported: &Imported) -> impl Iterator<Item = &Layer> {
    imported.layers.iter().filter(|layer| *layer.media_type() == media_types::TENSOR)
}

#[test]
fn rebuilds_gguf_files() {
    let Some(folder) = fixtures("import_store::rebuilds_gguf_files", "gguf") else { return };
    let target = StoreTarget::new();
    let meta = ["mixed_types", "dims_1_to_4", "align_4096", "v2", "minimal", "zero_keys", "zero_tensors"];
    for file in meta {
        check_rebuilt(&target, &folder.join("meta").join(file).with_extension("gguf"));
    }
    for part in ["ambiguous", "types"] {
        for path in files(&folder.join(part), "gguf") {
            let refused = REFUSED.iter().any(|(file, _)| *file == format!("{part}/{}", name(&path)));
            if !refused {
                check_rebuilt(&target, &path);
            }
        }
    }
}

#[test]
fn rebuilds_a_split_gguf() {
    let Some(folder) = fixtures("import_store::rebuilds_a_split_gguf", "gguf/meta") else { return };
    // Whichever of the files is named, all of them are the model.
    for file in ["split-00001-of-00002.gguf", "split-00002-of-00002.gguf"] {
        assert_eq!(check_rebuilt(&StoreTarget::new(), &folder.join(file)), 2);
    }
}

#[test]
fn rebuilds_hugging_face_models() {
    let Some(folder) = fixtures("import_store::rebuilds_hugging_face_models", "hf") else { return };
    let target = StoreTarget::new();
    for (model, shards) in [("llama", 3), ("qwen3_moe", 2), ("granite", 1)] {
        assert_eq!(check_rebuilt(&target, &folder.join(model).join("model")), shards, "{model}");
    }
}

#[test]
fn rebuilds_real_models() {
    let test = "import_store::rebuilds_real_models";
    let files = models().map(|folder| files(&folder, "gguf")).unwrap_or_default();
    if files.is_empty() {
        skip(test, "there are no real models; scripts/fetch-model gets them, LODE_TEST_MODELS says where they are");
    }
    for path in files {
        check_rebuilt(&StoreTarget::new(), &path);
    }
}

#[test]
fn refuses_what_it_could_not_keep() {
    let Some(folder) = fixtures("import_store::refuses_what_it_could_not_keep", "gguf") else { return };
    let target = StoreTarget::new();
    for (file, says) in REFUSED {
        let error = import_model(&folder.join(file), &target).expect_err(file).to_string();
        assert!(error.contains(says), "{file}: `{error}` should say `{says}`");
    }
    assert!(target.store.blobs().expect("blobs can be listed").is_empty(), "something was written all the same");
}

#[test]
fn refuses_a_safetensors_file_with_a_nameless_tensor() {
    let test = "import_store::refuses_a_safetensors_file_with_a_nameless_tensor";
    let Some(folder) = fixtures(test, "safetensors/ambiguous") else { return };
    let model = tempfile::tempdir().expect("a temporary folder");
    let copy = model.path().join("model.safetensors");
    fs::copy(folder.join("name_empty.safetensors"), copy).expect("the file can be copied");
    let error = import_model(model.path(), &StoreTarget::new()).expect_err("no name").to_string();
    assert!(error.contains("without a name"), "{error}");
}

/// Imports a model, makes its files anew from the layers and holds them against the source. Says how many files have
/// tensors.
fn check_rebuilt(target: &StoreTarget, path: &Path) -> usize {
    let imported = target.import(path);
    let layers = &imported.layers;
    let origin = target.read(layer(layers, &[media_types::ORIGIN], "origin.json"));
    let origin: Origin = serde_json::from_slice(&origin).expect("the origin document can be read");
    let files = import::locate(path).expect("the model is there");
    for file in &files {
        let rebuilt = match origin.files.iter().find(|from| from.name == file.name) {
            Some(from) => rebuild(target, layers, from),
            None => target.read(layer(layers, &SIDE_FILES, &file.name)),
        };
        let source = read(&file.path);
        assert_eq!(rebuilt.len(), source.len(), "{}: size of `{}`", path.display(), file.name);
        assert_eq!(Digest::of(&rebuilt), Digest::of(&source), "{}: bytes of `{}`", path.display(), file.name);
    }
    let with_tensors = origin.files.len();
    assert!(with_tensors > 0 && with_tensors <= files.len(), "{}: {with_tensors} files", path.display());
    with_tensors
}

/// A file from its header, its tensors and what lay in gaps; the rest is zero.
fn rebuild(target: &StoreTarget, layers: &[Layer], file: &OriginFile) -> Vec<u8> {
    let mut bytes = vec![0; file.size as usize];
    let mut place = |offset: u64, piece: &[u8]| {
        let begin = offset as usize;
        bytes[begin..begin + piece.len()].copy_from_slice(piece);
    };
    let header = target.read(layer(layers, &[media_types::HEADER], &file.name));
    assert_eq!(header.len() as u64, file.header, "length of the header of `{}`", file.name);
    place(0, &header);
    for tensor in &file.tensors {
        let name = &tensor.name;
        let holder = layer(layers, &[media_types::TENSOR], tensor.layer.as_ref().unwrap_or(name));
        let blob = target.read(holder);
        let header = Header::parse(&blob, holder.size()).unwrap_or_else(|e| panic!("blob of `{name}`: {e}"));
        let member = header.tensor(name).unwrap_or_else(|| panic!("the blob of `{name}` does not have it"));
        assert_eq!(member.size(), tensor.size, "size of `{name}`");
        let begin = (header.data_start + member.begin) as usize;
        place(tensor.offset, &blob[begin..begin + tensor.size as usize]);
    }
    for gap in &file.gaps {
        let piece = target.read(layer(layers, &[media_types::HEADER], &gap.layer));
        assert_eq!(piece.len() as u64, gap.size, "size of the gap at {} of `{}`", gap.offset, file.name);
        place(gap.offset, &piece);
    }
    bytes
}

/// The one layer of that name among those of these types.
fn layer<'a>(layers: &'a [Layer], types: &[MediaType], name: &str) -> &'a Layer {
    let mut found = layers.iter().filter(|layer| types.contains(layer.media_type()) && layer.name() == Some(name));
    let first = found.next().unwrap_or_else(|| panic!("there is no layer `{name}` of {types:?}"));
    assert!(found.next().is_none(), "there are two layers `{name}` of {types:?}");
    first
}
