//! A client that behaves like Ollama's. It pulls ranges of blobs from the `Location`, and pushes
//! chunks. A POST without a body checks whether the registry has a tensor.

use content::Algorithm::Sha256;
use reqwest::{Method, RequestBuilder};
use serde_json::json;

use super::client::{Blob, Registry, reply};
use super::documents::{DOCKER_IMAGE, Document};
use super::upload::{Way, begin, created, finish, push};

/// The client's `User-Agent`.
const AGENT: &str = "ollama/0.12.3 (amd64 linux) Go/go1.24.1";

fn ask(registry: &Registry, method: Method, path: &str) -> RequestBuilder {
    registry.ask(method, path).header("User-Agent", AGENT)
}

/// Returns the blobs and the manifest of a model in Ollama's layout.
fn model() -> (Vec<Blob>, Document) {
    let blobs = vec![
        Blob::new(Sha256, br#"{"model_format":"gguf","model_family":"llama"}"#),
        Blob::sample(Sha256, "weights", 5 << 20),
        Blob::new(Sha256, b"{{ .Prompt }}"),
    ];
    let kinds = [
        "application/vnd.docker.container.image.v1+json",
        "application/vnd.ollama.image.model",
        "application/vnd.ollama.image.template",
    ];
    let mut entries: Vec<_> = blobs
        .iter()
        .zip(kinds)
        .map(|(blob, kind)| json!({"mediaType": kind, "digest": blob.digest.to_string(), "size": blob.bytes.len()}))
        .collect();
    let layers = entries.split_off(1);
    let value = json!({"schemaVersion": 2, "mediaType": DOCKER_IMAGE, "config": entries[0], "layers": layers});
    (blobs, Document::new(Sha256, &value))
}

/// Pushes a blob in chunks of a fixed size.
async fn push_chunked(registry: &Registry, repository: &str, blob: &Blob) {
    ask(registry, Method::HEAD, &format!("/v2/{repository}/blobs/{}", blob.digest))
        .send()
        .await
        .map(|answer| assert_eq!(answer.status().as_u16(), 404))
        .expect("an answer");
    let opened = reply(ask(registry, Method::POST, &format!("/v2/{repository}/blobs/uploads/"))).await.is(202);
    let mut place = opened.location();
    let mut done = 0;
    for part in blob.bytes.chunks(2 << 20) {
        let request = registry.ask_at(Method::PATCH, &place).header("User-Agent", AGENT).body(part.to_vec());
        let request = request
            .header("Content-Type", "application/octet-stream")
            .header("Content-Range", format!("{done}-{}", done + part.len() - 1))
            .header("X-Redirect-Uploads", "1");
        place = reply(request).await.is(202).location();
        done += part.len();
    }
    let request = finish(registry, &place, blob).header("User-Agent", AGENT);
    let done = reply(request.header("Content-Type", "application/octet-stream").header("Content-Length", "0")).await;
    created(registry, done, blob).await;
}

/// Pulls a blob in ranges, from the `Location` of the first reply.
async fn pull_parts(registry: &Registry, repository: &str, blob: &Blob) {
    let path = format!("/v2/{repository}/blobs/{}", blob.digest);
    let head = reply(ask(registry, Method::HEAD, &path)).await.is(200);
    let size: usize = head.header("Content-Length").parse().expect("a size");
    assert_eq!(size, blob.bytes.len());
    let found = reply(ask(registry, Method::GET, &path)).await.any_of(&[200, 307]);
    let place = found.location();
    let mut bytes = Vec::new();
    while bytes.len() < size {
        let end = (bytes.len() + size / 3 + 1).min(size);
        let request = registry.ask_at(Method::GET, &place).header("User-Agent", AGENT);
        let range = format!("bytes={}-{}", bytes.len(), end - 1);
        let part = reply(request.header("Range", range)).await.is(206);
        let part = part.has("Content-Range", &format!("bytes {}-{}/{size}", bytes.len(), end - 1));
        bytes.extend(part.body);
    }
    assert!(bytes == blob.bytes, "the parts of {}", blob.digest);
}

#[tokio::test]
async fn pushes_and_pulls_a_model() {
    let registry = Registry::start().await;
    let repository = "library/wire";
    let (blobs, manifest) = model();
    for blob in &blobs {
        push_chunked(&registry, repository, blob).await;
        reply(ask(&registry, Method::HEAD, &format!("/v2/{repository}/blobs/{}", blob.digest))).await.is(200);
    }
    let path = format!("/v2/{repository}/manifests/latest");
    let put = ask(&registry, Method::PUT, &path).header("Content-Type", DOCKER_IMAGE).body(manifest.bytes.clone());
    reply(put).await.is(201).has("Docker-Content-Digest", &manifest.digest.to_string());
    let get = ask(&registry, Method::GET, &path).header("Accept", DOCKER_IMAGE);
    reply(get).await.is(200).has("Content-Type", DOCKER_IMAGE).holds(&manifest.bytes);
    for blob in &blobs {
        pull_parts(&registry, repository, blob).await;
    }
}

#[tokio::test]
async fn others_are_not_sent_elsewhere() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Sha256, "elsewhere", 3000);
    push(&registry, "conformance/elsewhere", &blob, Way::PostPut).await;
    let path = format!("/v2/conformance/elsewhere/blobs/{}", blob.digest);
    for agent in ["curl/8.0", "containerd/2.0", "not-ollama/1"] {
        let answer = reply(registry.ask(Method::GET, &path).header("User-Agent", agent)).await.is(200);
        assert_eq!(answer.find("Location"), None, "{answer}");
    }
}

#[tokio::test]
async fn asks_for_tensors_without_sending_them() {
    let registry = Registry::start().await;
    let repository = "library/wire-tensors";
    let blob = Blob::sample(Sha256, "tensor", 70_000);
    let path = format!("/v2/{repository}/blobs/uploads/?digest={}", blob.digest);
    let post = || {
        ask(&registry, Method::POST, &path)
            .header("X-Redirect-Uploads", "2")
            .header("X-Content-Length", blob.bytes.len())
    };
    let opened = reply(post()).await.is(202);
    let request = finish(&registry, &opened.location(), &blob).header("User-Agent", AGENT);
    let request = request.header("Content-Type", "application/octet-stream").body(blob.bytes.clone());
    created(&registry, reply(request).await, &blob).await;
    // The registry may now report the blob as present, or open a session again.
    let again = reply(post()).await.any_of(&[201, 202]);
    if again.status == 201 {
        created(&registry, again, &blob).await;
    }
}

#[tokio::test]
async fn mounts_what_another_model_has() {
    let registry = Registry::start().await;
    let blob = Blob::sample(Sha256, "mounted", 4000);
    push(&registry, "library/wire-base", &blob, Way::PostPut).await;
    let path = format!("/v2/library/wire-derived/blobs/uploads/?mount={}&from=library/wire-base", blob.digest);
    let mounted = reply(ask(&registry, Method::POST, &path)).await;
    created(&registry, mounted, &blob).await;
    // Unfinished sessions do not disturb later pulls.
    for _ in 0..20 {
        begin(&registry, "library/wire-derived").await;
    }
    pull_parts(&registry, "library/wire-derived", &blob).await;
}
