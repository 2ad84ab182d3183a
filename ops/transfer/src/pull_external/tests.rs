//! Tests: imports the tiny model from a hub and from an archive into real stores.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::json;
use store::{Options, Store};
use tokio::runtime::Runtime;

use build::{CreateSpec, Source, create};
use content::{Descriptor, Unwatched};
use import::LocalFile;
use library::{Layout, classify};

use super::*;
use crate::meter::{Meter, Watched};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-llama")
}

fn library() -> (Library, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(folder.path(), Options::default()).expect("a new store opens");
    (Library::new(store), folder)
}

/// Imports the tiny model from the files on disk.
fn local(library: &Library) -> Arc<Manifest> {
    let name: ModelRef = "local".parse().expect("a name");
    let spec = CreateSpec {
        in_place: false,
        name: name.clone(),
        source: Source::at(&tiny(), None).expect("files"),
        template: None,
        renderer: None,
        parser: None,
        system: None,
        licenses: Vec::new(),
        parameters: serde_json::Map::new(),
        messages: Vec::new(),
        adapters: Vec::new(),
        quantize: None,
    };
    create(library, &spec, &Unwatched).expect("the model can be created");
    library.find(&name).expect("it is there").manifest
}

fn local_layers() -> Vec<Layer> {
    let (library, _folder) = library();
    local(&library).layers().to_vec()
}

/// The known hash of the model's file with tensors, if any.
fn known_hash(library: &Library, manifest: &Manifest) -> Option<String> {
    let known = library.file_digests(manifest.digest());
    assert!(known.len() <= 1, "{known:?}");
    known.into_values().next().map(|digest| digest.hex())
}

fn weights_hash() -> String {
    Digest::of(&std::fs::read(tiny().join("model.safetensors")).expect("a file")).hex()
}

#[test]
fn tensor_layers_of_ollama_get_a_config() {
    let (library, _folder) = library();
    let kept = [media_types::TENSOR, media_types::JSON];
    let layers = local(&library).layers().iter().filter(|layer| kept.contains(layer.media_type())).cloned().collect();
    let guard = library.guard();
    let target = StoreTarget::streaming(&library, &guard);
    let config = br#"{"model_format":"safetensors","model_family":"theirs","capabilities":["completion"]}"#;
    let config = target.bytes(media_types::CONFIG, config).expect("stored");
    let theirs = manifests::ManifestBuilder { config, layers, annotations: BTreeMap::new() }.build().expect("builds");
    assert_eq!(classify(&theirs), Layout::OllamaTensors);
    let name: ModelRef = "adopted".parse().expect("a name");
    adopt(&library, &theirs, &name, "example.com/x:latest", &Unwatched).expect("it can be used");
    let model = library.find(&name).expect("it has its name");
    assert_eq!((model.manifest.layers(), model.config.model_family.as_str()), (theirs.layers(), "theirs"));
    let lode = model.config.lode.clone().expect("what a run needs");
    assert!(model.parsed_facts.known().is_some() && lode.parameter_count > 0);
    assert_eq!(lode.tensor_count as usize, library.catalogue(&theirs).expect("its tensors").len());
    assert_eq!(classify(&model.manifest), Layout::Lode);
}

/// A hub with one repository in memory.
struct Repository {
    files: HashMap<String, Vec<u8>>,
    /// Bytes that were served of each file.
    served: Mutex<HashMap<String, u64>>,
}

async fn serve(State(hub): State<Arc<Repository>>, UrlPath(path): UrlPath<String>, headers: HeaderMap) -> Response {
    if path == "api/models/u/tiny/revision/main" {
        let mut siblings: Vec<_> = hub
            .files
            .iter()
            .map(|(name, bytes)| {
                let large = name.ends_with(".safetensors");
                let lfs = json!({"sha256": Digest::of(&std::fs::read(tiny().join(name)).unwrap_or_default()).hex()});
                json!({"rfilename": name, "size": bytes.len(), "lfs": if large { lfs } else { json!(null) }})
            })
            .collect();
        siblings.sort_by_key(ToString::to_string);
        return json!({"sha": COMMIT, "siblings": siblings}).to_string().into_response();
    }
    let name = path.strip_prefix(&format!("u/tiny/resolve/{COMMIT}/")).unwrap_or_default();
    let Some(bytes) = hub.files.get(name) else { return StatusCode::NOT_FOUND.into_response() };
    let asked = headers.get("range").and_then(|value| value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    let (first, last) = asked.expect("files are asked for by ranges");
    let (first, last): (usize, usize) = (first.parse().expect("a number"), last.parse().expect("a number"));
    *hub.served.lock().expect("nobody panicked").entry(name.to_owned()).or_default() += (last + 1 - first) as u64;
    let range = format!("bytes {first}-{last}/{}", bytes.len());
    (StatusCode::PARTIAL_CONTENT, [("content-range", range)], bytes[first..=last].to_vec()).into_response()
}

fn start(runtime: &Runtime, damaged: bool) -> (Arc<Repository>, Hub) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut files: HashMap<String, Vec<u8>> = import::locate(&tiny())
        .expect("the model is there")
        .into_iter()
        .map(|file| (file.name.clone(), std::fs::read(tiny().join(file.name)).expect("a file")))
        .collect();
    files.insert("README.md".to_owned(), b"not part of the model".to_vec());
    if damaged {
        let weights = files.get_mut("model.safetensors").expect("it is there");
        *weights.last_mut().expect("it has bytes") ^= 1;
    }
    let hub = Arc::new(Repository { files, served: Mutex::default() });
    let router = Router::new().route("/{*path}", get(serve)).with_state(Arc::clone(&hub));
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port is free");
    let address = format!("http://{}", listener.local_addr().expect("it is bound"));
    runtime.spawn(async move { axum::serve(listener, router).await });
    let endpoint = Endpoint::new(&address, None).expect("an endpoint");
    (hub, Hub { address, endpoint })
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// A watched transfer whose status messages are discarded.
fn watched() -> Watched {
    Watched::new(&Arc::new(Meter::new(tokio::sync::mpsc::unbounded_channel().0)))
}

#[test]
fn a_hub_s_model_is_the_one_on_disk() {
    let runtime = runtime();
    let (repository, hub) = start(&runtime, false);
    let (library, _folder) = library();
    let reference = HubReference::parse("hf.co/u/tiny").expect("it is read").expect("it is a hub's");
    let watched = watched();
    let observer = runtime.block_on(async { watched.observer() });
    let first = pull_hub(&library, &hub, &reference, None, &observer).expect("it can be pulled");
    let model = library.find(&"hf.co/u/tiny".parse().expect("a name")).expect("it has its name");
    assert_eq!(model.manifest.layers(), local_layers());
    assert_eq!(known_hash(&library, &model.manifest), Some(weights_hash()));
    assert_eq!(known_hash(&library, &local(&library)), None, "nobody has hashed the file on the disk");
    let origin = model.manifest.annotations().get(annotations::ORIGIN_REFERENCE).map(String::as_str);
    assert_eq!(origin, Some(format!("hf.co/u/tiny@{COMMIT}").as_str()));
    let served = |name: &str| repository.served.lock().expect("nobody panicked").get(name).copied();
    let size = repository.files["model.safetensors"].len() as u64;
    assert_eq!((served("model.safetensors"), served("README.md")), (Some(size), None), "each byte once, and no more");
    let second = pull_hub(&library, &hub, &reference, None, &observer).expect("it can be pulled again");
    assert_eq!((second.new.blobs, second.shared.blobs), (0, first.new.blobs));
}

#[test]
fn a_lying_hub_gets_no_name_and_is_not_remembered() {
    let runtime = runtime();
    let (library, _folder) = library();
    let reference = HubReference::parse("hf.co/u/tiny").expect("it is read").expect("it is a hub's");
    let name: ModelRef = "hf.co/u/tiny".parse().expect("a name");
    let (_, lying) = start(&runtime, true);
    let watched = watched();
    let observer = runtime.block_on(async { watched.observer() });
    let error = pull_hub(&library, &lying, &reference, None, &observer).expect_err("a byte is wrong").to_string();
    assert!(error.contains("it was corrupted in transit"), "{error}");
    assert!(library.find(&name).is_err(), "it has a name all the same");
    let (_, honest) = start(&runtime, false);
    pull_hub(&library, &honest, &reference, None, &observer).expect("what the other said is forgotten");
    let layers = library.find(&name).expect("it has its name").manifest.layers().to_vec();
    assert_eq!(layers, local_layers());
}

/// A minimal tar archive of the files.
fn tar(files: &[NamedFile]) -> Vec<u8> {
    let mut archive = Vec::new();
    for file in files {
        let content = std::fs::read(file.source.name()).expect("a file");
        let mut block = vec![0; 512];
        block[..file.name.len()].copy_from_slice(file.name.as_bytes());
        block[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
        block[148..156].copy_from_slice(b"        ");
        block[156] = b'0';
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend(block);
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

#[test]
fn an_archive_is_read_where_it_lies() {
    let (library, _folder) = library();
    let archive = tar(&import::locate(&tiny()).expect("the model is there"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("weights.tar");
    std::fs::write(&path, &archive).expect("the archive is written");
    let media_type = content::MediaType::known("application/vnd.cncf.model.weight.v1.tar");
    let file = |digest| ExternalFile {
        layer: Layer::new(Descriptor { media_type: media_type.clone(), digest, size: archive.len() as u64 }),
        name: "weights.tar".to_owned(),
        named: false,
        kind: FileKind::Tar,
    };
    let source = || Arc::new(LocalFile::new(&path)) as Arc<dyn ReadAt>;
    let error =
        expand(vec![(file(Digest::of(b"other")), source())], &Unwatched).expect_err("another digest").to_string();
    assert!(error.contains("its manifest says"), "{error}");
    let twice = vec![(file(Digest::of(&archive)), source()), (file(Digest::of(&archive)), source())];
    assert!(expand(twice, &Unwatched).expect_err("twice").to_string().contains("two files called"));
    let license = Descriptor::of(media_types::LICENSE, b"free");
    let manifest = Digest::of(b"a manifest");
    let model = ExternalModel {
        name: "packed".parse().expect("a name"),
        files: expand(vec![(file(Digest::of(&archive)), source())], &Unwatched).expect("its members"),
        kept: vec![Layer::new(license.clone())],
        manifest: Some(manifest),
        config: ModelConfig { renderer: "qwen3-coder".to_owned(), ..ModelConfig::default() },
        reference: "example.com/packed:latest".to_owned(),
    };
    // The caller has copied the kept layers.
    let guard = library.guard();
    StoreTarget::streaming(&library, &guard).bytes(media_types::LICENSE, b"free").expect("stored");
    pull_external(&library, &model, &Unwatched).expect("it can be imported");
    let found = library.find(&model.name).expect("it has its name").manifest;
    assert_eq!(found.layers(), [local_layers(), model.kept.clone()].concat());
    assert_eq!(library.find(&model.name).expect("the same").config.renderer, "qwen3-coder");
    assert_eq!(known_hash(&library, &found), Some(weights_hash()));
    assert_eq!(found.annotations().get(annotations::ORIGIN_MANIFEST), Some(&manifest.to_string()));
}
