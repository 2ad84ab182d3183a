//! A hub that works like Hugging Face's: a repository with revisions, and large files on another
//! host.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use content::Digest;
use serde_json::{Map, Value, json};

use crate::server::Server;
use crate::service::{Service, set, whole_or_part};
use crate::stored;
use crate::support::{entries, name, read};
use crate::synthetic::llama;

/// The tensor that is in a separate file and differs between revisions.
const ALONE: &str = "model.layers.1.mlp.gate_proj.weight";

/// The files of a revision.
pub(crate) type Files = BTreeMap<String, Bytes>;

/// A served range: the file and the number of bytes.
type Piece = (String, u64);

#[derive(Default)]
struct Shared {
    /// Revisions by commit; the branch `main` is the last one.
    revisions: Mutex<Vec<(String, Files)>>,
    served: Mutex<Vec<Piece>>,
    /// `Authorization` headers that the host of large files received.
    told: Mutex<Vec<String>>,
    /// `HOST:PORT` of the host of large files.
    storage: String,
}

/// The hub with the repository `someone/tiny`.
pub(crate) struct Hub {
    pub(crate) service: Service,
    shared: Arc<Shared>,
    storage_files: Arc<Shared>,
    _storage: Service,
}

impl Hub {
    pub(crate) fn start() -> Self {
        let storage_files = Arc::new(Shared::default());
        let storage = Service::start(Router::new().fallback(store).with_state(Arc::clone(&storage_files)));
        let shared = Arc::new(Shared { storage: storage.address.clone(), ..Shared::default() });
        let service = Service::start(Router::new().fallback(answer).with_state(Arc::clone(&shared)));
        Self { service, shared, storage_files, _storage: storage }
    }

    pub(crate) fn publish(&self, commit: &str, files: &Files) {
        for shared in [&self.shared, &self.storage_files] {
            lock(&shared.revisions).push((commit.to_owned(), files.clone()));
            lock(&shared.served).clear();
        }
    }

    /// Returns the bytes of a file that were served by either host.
    fn served(&self, file: &str) -> u64 {
        let of = |shared: &Shared| {
            let served = lock(&shared.served);
            served.iter().filter(|(name, _)| name == file).map(|(_, bytes)| bytes).sum::<u64>()
        };
        of(&self.shared) + of(&self.storage_files)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panicked with it in hand")
}

/// Serves the API and the small files.
async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let revisions = lock(&shared.revisions).clone();
    let find = |revision: &str| match revision {
        "main" => revisions.last().cloned(),
        commit => revisions.iter().find(|(own, _)| own == commit).cloned(),
    };
    if path == "/api/models" {
        let query = request.uri().query().unwrap_or_default();
        let found =
            query.split('&').any(|part| part.strip_prefix("search=").is_some_and(|text| "someone/tiny".contains(text)));
        let models = if found { vec![json!({"id": "someone/tiny", "downloads": 7})] } else { Vec::new() };
        return axum::Json(models).into_response();
    }
    let listed = path.strip_prefix("/api/models/someone/tiny/revision/").or_else(|| {
        // The URL without a revision refers to the branch.
        (path == "/api/models/someone/tiny").then_some("main")
    });
    if let Some((commit, files)) = listed.and_then(find) {
        let siblings: Vec<Value> = files.iter().map(|(name, bytes)| sibling(name, bytes)).collect();
        return axum::Json(json!({"id": "someone/tiny", "sha": commit, "siblings": siblings})).into_response();
    }
    let named = path.strip_prefix("/someone/tiny/resolve/").and_then(|rest| rest.split_once('/'));
    let Some((commit, file)) = named else { return StatusCode::NOT_FOUND.into_response() };
    let found = find(commit).and_then(|(commit, files)| Some((commit, files.get(file)?.clone())));
    let Some((commit, bytes)) = found else { return StatusCode::NOT_FOUND.into_response() };
    let digest = Digest::of(&bytes).hex();
    let size = bytes.len();
    let mut answer = if is_large(file) {
        let mut answer = StatusCode::FOUND.into_response();
        set(answer.headers_mut(), header::LOCATION, &format!("http://{}/{commit}/{file}", shared.storage));
        answer
    } else {
        serve(&shared, file, bytes, &request)
    };
    let headers = answer.headers_mut();
    set(headers, header::HeaderName::from_static("x-repo-commit"), &commit);
    set(headers, header::HeaderName::from_static("x-linked-etag"), &format!("\"{digest}\""));
    set(headers, header::HeaderName::from_static("x-linked-size"), &size.to_string());
    answer
}

fn is_large(file: &str) -> bool {
    file.ends_with(".safetensors")
}

fn sibling(name: &str, bytes: &Bytes) -> Value {
    let mut sibling = json!({"rfilename": name, "size": bytes.len()});
    if is_large(name) {
        sibling["lfs"] = json!({"sha256": Digest::of(bytes).hex(), "size": bytes.len(), "pointerSize": 134});
    }
    sibling
}

/// Serves the large files.
async fn store(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if let Some(told) = request.headers().get(header::AUTHORIZATION) {
        lock(&shared.told).push(format!("{told:?}"));
    }
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let revisions = lock(&shared.revisions).clone();
    let file = path.split_once('/').and_then(|(commit, file)| {
        let (_, files) = revisions.iter().find(|(own, _)| own == commit)?;
        Some((file.to_owned(), files.get(file)?.clone()))
    });
    let Some((file, bytes)) = file else { return StatusCode::NOT_FOUND.into_response() };
    serve(&shared, &file, bytes, &request)
}

fn serve(shared: &Shared, file: &str, bytes: Bytes, request: &Request) -> Response {
    let range = request.headers().get(header::RANGE).and_then(|range| range.to_str().ok());
    let answer = whole_or_part(bytes, range);
    let length = answer.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if request.method() == axum::http::Method::GET {
        lock(&shared.served).push((file.to_owned(), length.unwrap_or(0)));
    }
    answer
}

/// Returns the model's files with two files of weights. The second has one tensor, whose bytes all
/// depend on `seed`.
fn sharded(folder: &Path, seed: u8) -> Files {
    let mut files = Files::new();
    for path in entries(folder) {
        files.insert(name(&path), read(&path).into());
    }
    let weights = files.remove("model.safetensors").expect("weights");
    let length = u64::from_le_bytes(*weights.first_chunk::<8>().expect("a length"));
    let data = 8 + usize::try_from(length).expect("small");
    let header: Map<String, Value> = serde_json::from_slice(&weights[8..data]).expect("a header");
    let (alone, rest): (Map<_, _>, Map<_, _>) = header.into_iter().partition(|(name, _)| name == ALONE);
    let mut map = Map::new();
    for (file, tensors) in [("model-00001-of-00002.safetensors", rest), ("model-00002-of-00002.safetensors", alone)] {
        map.extend(tensors.keys().map(|tensor| (tensor.clone(), json!(file))));
        let mut shard = shard(&tensors, &weights[data..]);
        if tensors.contains_key(ALONE) {
            let first = shard.len() - 1000;
            shard[first..].iter_mut().step_by(2).for_each(|byte| *byte ^= seed);
        }
        files.insert(file.to_owned(), shard.into());
    }
    let index = json!({"metadata": {"total_size": weights.len() - data}, "weight_map": map});
    files.insert("model.safetensors.index.json".to_owned(), index.to_string().into());
    files
}

/// Returns a safetensors file with these tensors out of `data`.
fn shard(tensors: &Map<String, Value>, data: &[u8]) -> Vec<u8> {
    let (mut header, mut bytes) = (Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let place = |at: usize| tensor["data_offsets"][at].as_u64().and_then(|at| usize::try_from(at).ok());
        let range = place(0).expect("a place")..place(1).expect("a place");
        let begin = bytes.len();
        bytes.extend_from_slice(&data[range]);
        let offsets = json!([begin, bytes.len()]);
        header
            .insert(name.clone(), json!({"dtype": tensor["dtype"], "shape": tensor["shape"], "data_offsets": offsets}));
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes].concat()
}

/// Returns a folder with these files.
fn folder(files: &Files) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).expect("a copy");
    }
    folder
}

#[tokio::test]
async fn a_second_revision_costs_what_it_changed() {
    let hub = Hub::start();
    let source = llama(4, 512);
    let (first, second) = (sharded(source.path(), 0), sharded(source.path(), 1));
    hub.publish("1111111111111111111111111111111111111111", &first);
    let endpoint = format!("http://{}", hub.service.address);
    let server = Server::start(&[("HF_ENDPOINT", &endpoint), ("HF_TOKEN", "hf_secret")]).await;
    server.pull("hf.co/someone/tiny").await;
    server.create("created", folder(&first).path()).await;
    let of = |server: &Server| stored::manifest(&server.home(), "hf.co/someone/tiny", "latest");
    assert_eq!(of(&server).tensors(), stored::created(&server.home(), "created").tensors());
    assert_eq!(server.says("hf.co/someone/tiny").await, server.says("created").await);

    hub.publish("2222222222222222222222222222222222222222", &second);
    server.pull("hf.co/someone/tiny").await;
    server.create("changed", folder(&second).path()).await;
    assert_eq!(of(&server).tensors(), stored::created(&server.home(), "changed").tensors());
    let unchanged = "model-00001-of-00002.safetensors";
    let (served, size) = (hub.served(unchanged), first[unchanged].len() as u64);
    assert!(served < size / 8, "{served} of {size} bytes of a file that did not change were fetched again");
    let told = lock(&hub.storage_files.told).clone();
    assert!(told.is_empty(), "the token went to another host: {told:?}");
    assert!(!server.log().contains("hf_secret"), "the token is in the log");
    stored::blobs(&server.home());
}

/// Quantized weights are converted to other arrays, so the import checks the files' digests before
/// the conversion.
#[tokio::test]
async fn quantized_weights_are_converted_on_the_way() {
    let test = "real_registry::hub::quantized_weights_are_converted_on_the_way";
    let Some(cases) = crate::support::fixtures(test, "cases2026") else { return };
    let hub = Hub::start();
    let files = in_two_shards(&cases.join("gptq/model"));
    hub.publish("1111111111111111111111111111111111111111", &files);
    let endpoint = format!("http://{}", hub.service.address);
    let server = Server::start(&[("HF_ENDPOINT", &endpoint)]).await;
    server.pull("hf.co/someone/tiny").await;
    server.create("created", folder(&files).path()).await;
    let pulled = stored::manifest(&server.home(), "hf.co/someone/tiny", "latest");
    assert_eq!(pulled.tensors(), stored::created(&server.home(), "created").tensors());
    assert_eq!(server.says("hf.co/someone/tiny").await, server.says("created").await);
    // A file that does not match the hub's digest is refused.
    hub.publish("2222222222222222222222222222222222222222", &files);
    let changed = "model-00002-of-00002.safetensors";
    let mut bytes = files[changed].to_vec();
    *bytes.last_mut().expect("a byte") ^= 1;
    lock(&hub.storage_files.revisions)[1].1.insert(changed.to_owned(), bytes.into());
    let (_, answer) = server.call("/api/pull", &json!({"model": "hf.co/someone/tiny", "stream": false})).await;
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(error.contains(changed) && error.contains("has the digest"), "{answer}");
    let kept = stored::manifest(&server.home(), "hf.co/someone/tiny", "latest");
    assert_eq!(kept.tensors(), pulled.tensors(), "the name stays with what it had");
    // The index of an export matches its shards, and the export can be imported.
    let out = tempfile::tempdir().expect("a folder");
    let exported = out.path().join("files");
    let done = server.lode(&["export", "hf.co/someone/tiny", "--to", exported.to_str().expect("a path")]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(exported.join("model.safetensors.index.json").is_file());
    server.create("again", &exported).await;
    assert_eq!(stored::created(&server.home(), "again").tensors(), pulled.tensors());
}

/// Splits the single file of weights in a folder into two files and an index.
fn in_two_shards(model: &Path) -> Files {
    let read = |name: &str| std::fs::read(model.join(name)).expect("a file");
    let weights = read("model.safetensors");
    let data = 8 + usize::try_from(u64::from_le_bytes(*weights.first_chunk().expect("a length"))).expect("small");
    let header: Map<String, Value> = serde_json::from_slice(&weights[8..data]).expect("a header");
    let tensors: Vec<(String, Value)> = header.into_iter().filter(|(name, _)| name != "__metadata__").collect();
    let (mut files, mut map) = (Files::new(), Map::new());
    for (number, part) in tensors.chunks(tensors.len().div_ceil(2)).enumerate() {
        let name = format!("model-{:05}-of-00002.safetensors", number + 1);
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), name.as_str().into())));
        files.insert(name, shard(&part.iter().cloned().collect(), &weights[data..]).into());
    }
    files.insert("model.safetensors.index.json".to_owned(), json!({"weight_map": map}).to_string().into_bytes().into());
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        files.insert(name.to_owned(), read(name).into());
    }
    files
}
