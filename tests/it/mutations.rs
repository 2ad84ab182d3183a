//! Models with random errors: the test changes headers, counts, shapes, names and configs at
//! structurally significant places. An import refuses such a model or reproduces its files bit for
//! bit. It never panics, and never allocates more than a small part of the machine's memory.
//!
//! `LODE_TEST_MUTATION_SECONDS` sets the duration (default 10); `LODE_TEST_SEED` repeats a run.

mod gguf;
mod json;
mod safetensors;

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use content::{Algorithm, Digest};
use import::{BlobSink, Composed, Imported, NamedFile, Origin, ReadAt, RowOrder, Target, TensorSource};
use manifests::media_types;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::{BufferSink, fixtures, import_files, say};

/// The memory limit of the child process in KiB, hundreds of times the size of the models.
const MEMORY: u64 = 1 << 20;
/// The environment variable with the duration of the child process.
const SECONDS: &str = "LODE_TEST_MUTATION_SECONDS";
const SEED: &str = "LODE_TEST_SEED";

/// The files of a model: name and bytes.
type Files = Vec<(String, Vec<u8>)>;

#[test]
fn imports_survive_any_mutation() {
    let test = "mutations::imports_survive_any_mutation";
    if fixtures(test, "hf").is_none() {
        return;
    }
    let program = std::env::current_exe().expect("this program has a path");
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random::<u64>);
    let limited = format!("ulimit -v {MEMORY}; exec \"$0\" --exact mutations::child --ignored --nocapture");
    let child = Command::new("sh").args(["-c", &limited]).arg(program).env(SEED, seed.to_string()).output();
    let child = child.expect("the child starts");
    let told = format!("{}{}", String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success(), "with {SEED}={seed}:\n{told}");
    let line = told.lines().find(|line| line.contains("mutated models")).expect("the child says what it did");
    say(line);
}

/// The part of the test above that runs with limited memory.
#[test]
#[ignore = "started by imports_survive_any_mutation"]
fn child() {
    let seconds = std::env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(10);
    let seed = std::env::var(SEED).expect("the parent gives a seed").parse().expect("a number");
    let mut random = StdRng::seed_from_u64(seed);
    let models = models();
    let (begin, mut tried, mut taken) = (Instant::now(), 0u64, 0u64);
    while begin.elapsed() < Duration::from_secs(seconds) {
        let model = &models[random.random_range(0..models.len())];
        let files = mutated(model, &mut random);
        tried += 1;
        taken += u64::from(import(files));
    }
    assert!(tried > 10 && taken > 0 && taken < tried, "{taken} of {tried} were taken");
    say(&format!("{tried} mutated models, {taken} of them imported and given back, {} refused", tried - taken));
}

/// Returns every fixture that is a model.
fn models() -> Vec<Files> {
    let folder = fixtures("mutations::child", "").expect("the parent looked for it");
    let mut models = Vec::new();
    for model in crate::support::entries(&folder.join("hf")).iter().map(|model| model.join("model")) {
        models.extend(model.is_dir().then(|| files_of(&model)));
    }
    models
        .extend(crate::support::entries(&folder.join("mlx")).iter().filter(|path| path.is_dir()).map(|p| files_of(p)));
    for kind in ["types", "meta"] {
        for path in crate::support::files(&folder.join("gguf").join(kind), "gguf") {
            let bytes = crate::support::read(&path);
            if bytes.len() < 1 << 20 && !crate::support::name(&path).contains("split") {
                models.push(vec![("model.gguf".to_owned(), bytes)]);
            }
        }
    }
    assert!(models.len() > 80, "only {} models", models.len());
    models
}

fn files_of(folder: &std::path::Path) -> Files {
    let mut files: Files = Vec::new();
    for path in crate::support::entries(folder) {
        let name = crate::support::name(&path);
        // Tokenizers are large, and the import does not parse them.
        if path.is_file() && !name.starts_with("golden") && name != "tokenizer.json" {
            files.push((name, crate::support::read(&path)));
        }
    }
    files
}

fn mutated(model: &Files, random: &mut StdRng) -> Files {
    let mut files = model.clone();
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..files.len());
        let (name, bytes) = &mut files[at];
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            _ if random.random_ratio(1, 12) => damage(bytes, random),
            Some("json") => json::mutate_document(bytes, random),
            Some("safetensors") => safetensors::mutate(bytes, random),
            Some("gguf") => gguf::mutate(bytes, random),
            _ => damage(bytes, random),
        }
    }
    files
}

/// Changes bytes without regard to their meaning.
fn damage(bytes: &mut Vec<u8>, random: &mut StdRng) {
    if bytes.is_empty() {
        return;
    }
    match random.random_range(0..3) {
        0 => bytes.truncate(random.random_range(0..bytes.len())),
        1 => bytes.extend(std::iter::repeat_n(random.random::<u8>(), random.random_range(1..100))),
        _ => {
            for _ in 0..random.random_range(1..8) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
        }
    }
}

/// Imports a model, and returns whether it was accepted. An accepted model must be reproduced
/// exactly.
fn import(files: Files) -> bool {
    let sources: Vec<Arc<InMemory>> =
        files.into_iter().map(|(name, bytes)| Arc::new(InMemory { name, bytes: Arc::new(bytes) })).collect();
    let named: Vec<NamedFile> = sources
        .iter()
        .map(|source| NamedFile { name: source.name.clone(), source: Arc::clone(source) as Arc<dyn ReadAt> })
        .collect();
    let blobs = Blobs::default();
    match import_files(&named, &blobs) {
        Ok(imported) => {
            given_back(&sources, &imported, &blobs);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

fn given_back(sources: &[Arc<InMemory>], imported: &Imported, blobs: &Blobs) {
    let layer = imported.layers.iter().find(|layer| *layer.media_type() == media_types::ORIGIN);
    let origin: Origin = serde_json::from_slice(&blobs.read(layer.expect("an origin").digest())).expect("an origin");
    let all = blobs.all().clone();
    let open = move |digest: &Digest| {
        let bytes = all.get(digest).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(InMemory { name: digest.to_string(), bytes: Arc::clone(bytes) }) as Arc<dyn ReadAt>)
    };
    let open: Arc<import::OpenBlob> = Arc::new(open);
    for file in &origin.files {
        let composed = Composed::new(file, &imported.layers, Arc::clone(&open)).expect("the file can be put together");
        let digest = import::digest_of(&composed, Algorithm::Sha256).expect("it can be read");
        let source = sources.iter().find(|source| source.name == file.name).expect("a source");
        assert_eq!(digest, Digest::of(&source.bytes), "`{}` comes back as it was", file.name);
    }
    numbers(imported, &*open);
}

/// Decodes all tensors; a tensor that cannot be read must give an error.
fn numbers(imported: &Imported, open: &import::OpenBlob) {
    let Ok(tensors) = import::catalogue(&imported.layers, open) else { return };
    for tensor in tensors.iter().filter(|tensor| formats::codec::can_decode(tensor.encoding)) {
        let Ok(source) = TensorSource::of(tensor, open) else { continue };
        let read = source.pieces(RowOrder::Stored, &mut |piece| {
            piece.decode(&mut vec![0.0; piece.rows() * piece.columns()]);
            Ok(())
        });
        assert!(read.is_ok() || tensor.shape.len() != 2, "`{}`: {:?}", tensor.name, read.err());
    }
}

#[derive(Debug)]
struct InMemory {
    name: String,
    bytes: Arc<Vec<u8>>,
}

impl ReadAt for InMemory {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let begin = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let part = begin.checked_add(buffer.len()).and_then(|end| self.bytes.get(begin..end));
        buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// An import target that keeps blobs in memory.
#[derive(Default)]
struct Blobs(Mutex<HashMap<Digest, Arc<Vec<u8>>>>);

impl Blobs {
    fn all(&self) -> MutexGuard<'_, HashMap<Digest, Arc<Vec<u8>>>> {
        self.0.lock().expect("nobody panicked with the blobs in hand")
    }

    fn read(&self, digest: &Digest) -> Vec<u8> {
        self.all()[digest].to_vec()
    }
}

impl Target for Blobs {
    fn may_have(&self, _name: &str, _size: u64) -> bool {
        false
    }

    fn has(&self, digest: &Digest, _size: u64) -> Result<bool, content::Error> {
        Ok(self.all().contains_key(digest))
    }

    fn begin(&self, size: u64) -> Result<Box<dyn BlobSink + '_>, content::Error> {
        Ok(Box::new(BufferSink::new(size, |digest, bytes| self.all().insert(digest, Arc::new(bytes)).is_none())))
    }
}
