//! Imports into a real store: existing content is not written again, and the source files can be
//! restored bit for bit.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use content::{Algorithm, Amount, Digest, Expected, IngestId, MediaType};
use import::{BlobSink, Composed, Imported, LocalFile, NamedFile, OpenBlob, Origin, ReadAt, Target};
use manifests::{Layer, media_types};
use store::{IngestFile, Options, Store};

use crate::canonical_blobs::without_golden;
use crate::support::{
    entries, files, fixtures, import_files, import_model, json, list, models, name, skip, tiny_model,
};

/// Files that can be read but not imported, with a part of the error.
const REFUSED: [(&str, &str); 6] = [
    ("ambiguous/big_endian_v2.gguf", "big-endian"),
    ("meta/v3_be.gguf", "big-endian"),
    ("meta/all_value_types_be.gguf", "big-endian"),
    ("ambiguous/tensor_name_empty.gguf", "without a name"),
    ("ambiguous/kv_count_reinterpreted.gguf", "not a readable GGUF file"),
    ("ambiguous/tensor_count_reinterpreted.gguf", "not a readable GGUF file"),
];

/// Media types of layers that are whole files of the source.
const SIDE_FILES: [MediaType; 3] = [media_types::JSON, media_types::LICENSE, media_types::FILE];

/// An import target with a separate store for each test.
struct StoreTarget {
    store: Store,
    sizes: Mutex<HashSet<u64>>,
    /// Blobs by the digest of their source.
    made: Mutex<HashMap<Digest, Digest>>,
    started: AtomicU64,
    /// Deleted after the store is closed.
    _folder: tempfile::TempDir,
}

impl StoreTarget {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::open(folder.path(), Options::default()).expect("a new store opens");
        Self { store, sizes: Mutex::default(), made: Mutex::default(), started: AtomicU64::new(0), _folder: folder }
    }

    fn sizes(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.sizes.lock().expect("nobody panicked with the sizes in hand")
    }

    /// Returns the bytes of a layer.
    fn read(&self, layer: &Layer) -> Vec<u8> {
        let bytes = self.store.blobs().read(layer.digest(), layer.size()).expect("a layer's blob is there");
        assert_eq!(bytes.len() as u64, layer.size(), "size of {:?}", layer.name());
        bytes
    }

    fn opener(&self) -> Arc<OpenBlob> {
        let store = self.store.clone();
        Arc::new(move |digest: &Digest| Ok(Arc::new(LocalFile::new(store.blobs().path(digest))) as Arc<dyn ReadAt>))
    }

    fn import(&self, path: &Path) -> Imported {
        let imported = import_model(path, self).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let unfinished = self.store.blobs().ingest_ids().expect("ingests can be listed");
        assert!(unfinished.is_empty(), "{}: left behind {unfinished:?}", path.display());
        imported
    }
}

struct StoreSink<'a> {
    target: &'a StoreTarget,
    ingest: IngestFile,
    size: u64,
}

impl BlobSink for StoreSink<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<(), content::Error> {
        Ok(self.ingest.append(bytes)?)
    }

    fn commit(self: Box<Self>) -> Result<(Digest, bool), content::Error> {
        let Self { target, ingest, size } = *self;
        let digest = ingest.digest();
        if target.store.blobs().size(&digest)?.is_some() {
            ingest.cancel()?;
            return Ok((digest, false));
        }
        ingest.commit()?;
        target.sizes().insert(size);
        Ok((digest, true))
    }
}

impl Target for StoreTarget {
    fn may_have(&self, _name: &str, size: u64) -> bool {
        self.sizes().contains(&size)
    }

    fn has(&self, digest: &Digest, _size: u64) -> Result<bool, content::Error> {
        Ok(self.store.blobs().size(digest)?.is_some())
    }

    fn begin(&self, size: u64) -> Result<Box<dyn BlobSink + '_>, content::Error> {
        let id = IngestId::parse(&format!("import-{}", self.started.fetch_add(1, Ordering::Relaxed)))?;
        let ingest = self.store.blobs().start_ingest(&id, Expected::Size(size))?;
        Ok(Box::new(StoreSink { target: self, ingest, size }))
    }

    fn remembered(&self, source: &Digest) -> Option<Digest> {
        self.made.lock().expect("nobody panicked with it in hand").get(source).copied()
    }

    fn remember(&self, source: &Digest, blob: &Digest) {
        self.made.lock().expect("nobody panicked with it in hand").insert(*source, *blob);
    }
}

/// A file that behaves like a remote one: it has a digest, counts the bytes that are read, and
/// returns them in small pieces.
#[derive(Debug)]
struct Remote {
    file: LocalFile,
    digest: Digest,
    served: AtomicU64,
}

impl Remote {
    const PIECE: usize = 1000;

    fn files(path: &Path) -> (Vec<NamedFile>, Vec<Arc<Self>>) {
        let named = import::locate(path).expect("the model is there").into_iter().map(|local| {
            let digest = import::digest_of(&*local.source, Algorithm::Sha256).expect("the file can be read");
            let file = LocalFile::new(local.source.name());
            let remote = Arc::new(Self { file, digest, served: AtomicU64::new(0) });
            (NamedFile { name: local.name, source: Arc::clone(&remote) as Arc<dyn ReadAt> }, remote)
        });
        named.unzip()
    }
}

impl ReadAt for Remote {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.served.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        for (number, piece) in buffer.chunks_mut(Self::PIECE).enumerate() {
            self.file.read_exact_at(piece, offset + (number * Self::PIECE) as u64)?;
        }
        Ok(())
    }

    fn name(&self) -> String {
        format!("https://example.com/{}", self.file.name())
    }

    fn identity(&self) -> Option<String> {
        Some(self.digest.to_string())
    }
}

#[test]
fn imports_from_afar_and_does_not_ask_twice() {
    let (target, path) = (StoreTarget::new(), tiny_model());
    let (files, remotes) = Remote::files(&path);
    let first = import_files(&files, &target).expect("the model can be imported");
    assert_eq!(first.layers, StoreTarget::new().import(&path).layers, "from afar it is another model");
    check_files(&target, &path, &files, &first);
    let bytes: u64 = tensors(&first).map(Layer::size).sum();
    assert!(bytes > 0);
    for remote in &remotes {
        remote.served.store(0, Ordering::Relaxed);
    }
    // Simulates an interruption. Tensors that are remembered and exist are not read again.
    let lost = *tensors(&first).next().expect("a tensor").digest();
    fs::remove_file(target.store.blobs().path(&lost)).expect("a blob goes");
    let second = import_files(&files, &target).expect("the model can be imported again");
    assert_eq!(second.layers, first.layers);
    assert_eq!((second.new.blobs, second.shared.blobs), (1, first.new.blobs - 1));
    let shards = remotes.iter().filter(|remote| remote.file.name().ends_with(".safetensors"));
    let served: u64 = shards.map(|remote| remote.served.load(Ordering::Relaxed)).sum();
    // A read of a header includes adjacent bytes, so small files are read about once anyway.
    let size: u64 = remotes.iter().map(|remote| remote.size()).sum();
    assert!(served < 2 * size, "{served} bytes were read of {size}");
}

#[test]
fn a_second_import_writes_nothing() {
    let Some(folder) = fixtures("import_store::a_second_import_writes_nothing", "hf/llama/model") else { return };
    let target = StoreTarget::new();
    let first = target.import(&folder);
    let blobs = target.store.blobs().list();
    assert!(first.new.blobs > 0 && first.shared.blobs == 0, "{first:?}");
    let second = target.import(&folder);
    assert_eq!((second.new, second.shared), (Amount::default(), first.new));
    assert_eq!(second.layers, first.layers);
    assert_eq!(target.store.blobs().list(), blobs);
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
    assert_eq!(tuned.new.blobs, changed.len() as u64);
    assert_eq!(tuned.shared.blobs, (all.len() - changed.len()) as u64);
}

/// Returns the layer of a tensor in this model: the experts of a layer share one.
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
    // Either file selects the whole model.
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
fn rebuilds_mlx_models() {
    let Some(folder) = fixtures("import_store::rebuilds_mlx_models", "mlx") else { return };
    let target = StoreTarget::new();
    let mut models = entries(&folder);
    models.retain(|model| model.is_dir());
    assert_eq!(models.len(), 10, "{models:?}");
    for model in models {
        let copy = without_golden(&model);
        assert_eq!(check_rebuilt(&target, copy.path()), 1, "{}", name(&model));
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
    assert!(target.store.blobs().list().is_empty(), "something was written all the same");
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

/// Imports a model, restores its files from the layers, and compares them with the source. Returns
/// the number of files with tensors.
fn check_rebuilt(target: &StoreTarget, path: &Path) -> usize {
    let files = import::locate(path).expect("the model is there");
    check_files(target, path, &files, &target.import(path))
}

fn check_files(target: &StoreTarget, path: &Path, files: &[NamedFile], imported: &Imported) -> usize {
    let layers = &imported.layers;
    let origin = target.read(layer(layers, &[media_types::ORIGIN], "origin.json"));
    let origin: Origin = serde_json::from_slice(&origin).expect("the origin document can be read");
    for file in files {
        let rebuilt = match origin.files.iter().find(|from| from.name == file.name) {
            Some(from) => {
                let composed = Composed::new(from, layers, target.opener()).expect("the layers make the file");
                assert_eq!(composed.size(), file.source.size(), "{}: size of `{}`", path.display(), file.name);
                import::digest_of(&composed, Algorithm::Sha256).expect("its blobs can be read")
            }
            None => *layer(layers, &SIDE_FILES, &file.name).digest(),
        };
        let source = import::digest_of(&*file.source, Algorithm::Sha256).expect("the source can be read");
        assert_eq!(rebuilt, source, "{}: bytes of `{}`", path.display(), file.name);
    }
    let with_tensors = origin.files.len();
    assert!(with_tensors > 0 && with_tensors <= files.len(), "{}: {with_tensors} files", path.display());
    with_tensors
}

/// Returns the only layer with this name and one of these types.
fn layer<'a>(layers: &'a [Layer], types: &[MediaType], name: &str) -> &'a Layer {
    let mut found = layers.iter().filter(|layer| types.contains(layer.media_type()) && layer.name() == Some(name));
    let first = found.next().unwrap_or_else(|| panic!("there is no layer `{name}` of {types:?}"));
    assert!(found.next().is_none(), "there are two layers `{name}` of {types:?}");
    first
}
