//! Models in third-party layouts: a pull splits them into the same blobs that `create` makes from
//! the same files.

use std::path::Path;

use axum::http::Method;
use content::Digest;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::DockerRegistry;
use crate::server::{Server, http};
use crate::stored::{self, Stored};
use crate::support::{entries, fixtures, list, models, name, read, skip, tiny_model};
use crate::synthetic::fine_tune;

const OCI: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER: &str = "application/vnd.docker.distribution.manifest.v2+json";
const FILE_PATH: &str = "org.cncf.model.filepath";

/// An artifact to push.
struct Artifact {
    manifest: Value,
    media_type: &'static str,
    blobs: Vec<Vec<u8>>,
}

impl Artifact {
    fn new(media_type: &'static str, config_type: &str, config: &Value) -> Self {
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": descriptor(config_type, &config),
            "layers": [],
        });
        Self { manifest, media_type, blobs: vec![config] }
    }

    /// Adds a layer, with a path if it is a file.
    fn layer(mut self, layer_type: &str, bytes: Vec<u8>, path: Option<&str>) -> Self {
        let mut layer = descriptor(layer_type, &bytes);
        if let Some(path) = path {
            layer["annotations"] = json!({FILE_PATH: path});
        }
        self.manifest["layers"].as_array_mut().expect("layers").push(layer);
        self.blobs.push(bytes);
        self
    }

    /// Pushes the artifact in the simplest way: a session and a single request for each blob.
    async fn push(&self, registry: &str, repository: &str) {
        let http = http().build().expect("a client");
        let base = format!("http://{registry}/v2/{repository}");
        for blob in &self.blobs {
            let session = http.post(format!("{base}/blobs/uploads/")).send().await.expect("the registry answers");
            assert_eq!(session.status().as_u16(), 202, "an upload begins");
            let location = session.headers()["location"].to_str().expect("text");
            let mut url = session.url().join(location).expect("a place");
            url.query_pairs_mut().append_pair("digest", &Digest::of(blob).to_string());
            let done = http.put(url).body(blob.clone()).send().await.expect("the registry answers");
            assert_eq!(done.status().as_u16(), 201, "{}", done.text().await.unwrap_or_default());
        }
        let put = http.request(Method::PUT, format!("{base}/manifests/latest")).header("content-type", self.media_type);
        let done = put.body(self.manifest.to_string()).send().await.expect("the registry answers");
        assert_eq!(done.status().as_u16(), 201, "{}", done.text().await.unwrap_or_default());
    }
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": Digest::of(bytes).to_string(), "size": bytes.len()})
}

/// Returns the names and digests of the tensor layers.
fn tensors(manifest: &Stored) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let layers = list(&manifest.json["layers"]).iter();
    let tensors = layers.filter(|layer| layer["mediaType"] == "application/vnd.ollama.image.tensor");
    let mut tensors: Vec<_> = tensors.map(|layer| (text(&layer["name"]), text(&layer["digest"]))).collect();
    tensors.sort();
    tensors
}

/// Pushes the artifact to a registry, pulls it, and compares it with the result of `create` for
/// `source`.
async fn check(test: &str, artifact: &Artifact, source: &Path) {
    let docker = DockerRegistry::start(test, None).await;
    let lode = Server::start(&[]).await;
    for registry in docker.iter().map(|docker| &docker.address).chain([&lode.address]) {
        artifact.push(registry, "foreign/model").await;
        let server = Server::start(&[]).await;
        server.create("created", source).await;
        let repository = format!("{registry}/foreign/model");
        server.pull(&repository).await;
        let created = stored::created(&server.home(), "created");
        let pulled = stored::manifest(&server.home(), &repository, "latest");
        assert!(!tensors(&created).is_empty());
        assert_eq!(tensors(&pulled), tensors(&created), "{test} from {registry}");
        stored::blobs(&server.home());
        // A pull into an empty store is complete too, and does not additionally keep the original
        // file.
        let alone = Server::start(&[]).await;
        alone.pull(&repository).await;
        let pulled = stored::manifest(&alone.home(), &repository, "latest");
        let here = stored::blobs(&alone.home());
        assert!(pulled.blobs().keys().all(|digest| here.contains_key(digest)), "{test} from {registry}");
        let large = |blob: &&Vec<u8>| blob.len() > 100_000;
        let kept = artifact.blobs.iter().filter(large).map(|blob| Digest::of(blob).to_string());
        let kept: Vec<String> = kept.filter(|digest| here.contains_key(digest)).collect();
        assert!(kept.is_empty(), "{test}: the foreign file itself is kept: {kept:?}");
    }
}

/// Returns a GGUF file of the fixtures.
fn gguf(test: &str) -> Option<std::path::PathBuf> {
    Some(fixtures(test, "gguf/meta")?.join("mixed_types.gguf"))
}

fn ollama(gguf: &Path) -> Artifact {
    let config = json!({"model_format": "gguf", "model_family": "llama", "architecture": "amd64", "os": "linux"});
    Artifact::new(DOCKER, "application/vnd.docker.container.image.v1+json", &config)
        .layer("application/vnd.ollama.image.model", read(gguf), None)
        .layer("application/vnd.ollama.image.system", b"Be brief.".to_vec(), None)
        .layer("application/vnd.ollama.image.params", br#"{"temperature":0.5}"#.to_vec(), None)
}

#[tokio::test]
async fn a_gguf_of_ollama() {
    let test = "real_registry::foreign::a_gguf_of_ollama";
    let Some(file) = gguf(test) else { return };
    check(test, &ollama(&file), &file).await;
}

#[tokio::test]
async fn a_real_gguf_of_ollama() {
    let test = "real_registry::foreign::a_real_gguf_of_ollama";
    let Some(file) = models().map(|folder| folder.join("smollm2-135m-q4_1.gguf")).filter(|path| path.is_file()) else {
        return skip(test, "the model is not there; `scripts/fetch-model smollm2` gets it");
    };
    let registry = Server::start(&[]).await;
    ollama(&file).push(&registry.address, "library/foreign").await;
    let server = Server::start(&[]).await;
    server.create("created", &file).await;
    let repository = format!("{}/library/foreign", registry.address);
    server.pull(&repository).await;
    let pulled = stored::manifest(&server.home(), &repository, "latest");
    assert_eq!(tensors(&pulled), tensors(&stored::created(&server.home(), "created")));
    let raw = |model: &str| {
        let options = json!({"temperature": 0, "num_predict": 8});
        json!({"model": model, "prompt": "The sea", "raw": true, "stream": false, "options": options})
    };
    let said = server.ask("/api/generate", &raw("created")).await["response"].clone();
    assert_eq!(server.ask("/api/generate", &raw(&repository)).await["response"], said);
    let shown = server.ask("/api/show", &json!({"model": repository})).await;
    assert_eq!(shown["system"], "Be brief.");
}

#[tokio::test]
async fn a_gguf_of_docker_model_runner() {
    let test = "real_registry::foreign::a_gguf_of_docker_model_runner";
    let Some(file) = gguf(test) else { return };
    for (version, path) in [("v0.1", None), ("v0.2", Some("model.gguf"))] {
        let config = json!({
            "config": {"format": "gguf", "quantization": "Q4_0", "architecture": "llama"},
            "descriptor": {"created": "2026-01-01T00:00:00Z"},
            "rootfs": {"type": "rootfs", "diff_ids": []},
        });
        let artifact = Artifact::new(OCI, &format!("application/vnd.docker.ai.model.config.{version}+json"), &config)
            .layer("application/vnd.docker.ai.gguf.v3", read(&file), path);
        check(test, &artifact, &file).await;
    }
}

/// Returns the files of a model's folder, weights first.
fn model_files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = entries(folder).iter().map(|path| (name(path), read(path))).collect();
    files.sort_by_key(|(name, _)| !name.ends_with(".safetensors"));
    files
}

#[tokio::test]
async fn safetensors_of_docker_model_runner() {
    let test = "real_registry::foreign::safetensors_of_docker_model_runner";
    let config = json!({
        "config": {"format": "safetensors", "architecture": "llama"},
        "descriptor": {"created": "2026-01-01T00:00:00Z"},
        "rootfs": {"type": "rootfs", "diff_ids": []},
    });
    let files = model_files(&tiny_model());
    let newer = files.iter().fold(
        Artifact::new(OCI, "application/vnd.docker.ai.model.config.v0.2+json", &config),
        |artifact, (name, bytes)| {
            let weights = name.ends_with(".safetensors");
            let kind = if weights { "safetensors" } else { "model.file" };
            artifact.layer(&format!("application/vnd.docker.ai.{kind}"), bytes.clone(), Some(name))
        },
    );
    check(test, &newer, &tiny_model()).await;
    // The older layout has all other files in one archive.
    let (weights, others): (Vec<_>, Vec<_>) = files.into_iter().partition(|(name, _)| name.ends_with(".safetensors"));
    let older = Artifact::new(OCI, "application/vnd.docker.ai.model.config.v0.1+json", &config)
        .layer("application/vnd.docker.ai.safetensors", weights[0].1.clone(), None)
        .layer("application/vnd.docker.ai.vllm.config.tar", tar(&others), None);
    check(test, &older, &tiny_model()).await;
}

fn model_pack() -> Artifact {
    let config = json!({
        "descriptor": {"family": "llama", "name": "tiny"},
        "config": {"architecture": "transformer", "format": "safetensors"},
        "modelfs": {"type": "layers", "diffIds": []},
    });
    let mut artifact = Artifact::new(OCI, "application/vnd.cncf.model.config.v1+json", &config);
    artifact.manifest["artifactType"] = json!("application/vnd.cncf.model.manifest.v1+json");
    artifact
}

#[tokio::test]
async fn files_of_model_pack() {
    let test = "real_registry::foreign::files_of_model_pack";
    let tuned: TempDir = fine_tune(&["model.norm.weight"]);
    let artifact = model_files(tuned.path()).iter().fold(model_pack(), |artifact, (name, bytes)| {
        let kind = if name.ends_with(".safetensors") { "weight" } else { "weight.config" };
        artifact.layer(&format!("application/vnd.cncf.model.{kind}.v1.raw"), bytes.clone(), Some(name))
    });
    check(test, &artifact, tuned.path()).await;
}

#[tokio::test]
async fn archives_of_model_pack() {
    let test = "real_registry::foreign::archives_of_model_pack";
    let artifact = model_files(&tiny_model()).into_iter().fold(model_pack(), |artifact, (name, bytes)| {
        let kind = if name.ends_with(".safetensors") { "weight" } else { "weight.config" };
        let archive = tar(&[(name.clone(), bytes)]);
        artifact.layer(&format!("application/vnd.cncf.model.{kind}.v1.tar"), archive, Some(&name))
    });
    check(test, &artifact, &tiny_model()).await;
}

/// Returns an archive in the `ustar` format.
fn tar(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, bytes) in files {
        let mut header = [0_u8; 512];
        let mut field = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        field(0, name);
        field(100, "0000644\0");
        field(108, "0000000\0");
        field(116, "0000000\0");
        field(124, &format!("{:011o}\0", bytes.len()));
        field(136, "00000000000\0");
        // The checksum is computed with spaces in its own field.
        field(148, "        ");
        field(156, "0");
        field(257, "ustar\x0000");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(bytes);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}
