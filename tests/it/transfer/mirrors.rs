//! Mirrors of a registry: the fastest is preferred, and each replaces others that fail or lack
//! content.

use crate::gateway::{Fault, Gateway};
use crate::peers::{assert_same, registries};
use crate::server::{Server, free_port};
use crate::stored::{self, Stored};
use crate::synthetic::llama;

use super::{colleague, local};

/// Starts a daemon that has the tiny model, also under the name that a mirror's client requests.
/// Returns it with the address of a dead registry and the manifest.
async fn mirrored() -> (Server, String, Stored) {
    let source = colleague().await;
    let dead = format!("127.0.0.1:{}", free_port());
    let copy = serde_json::json!({"source": "tiny", "destination": format!("{dead}/library/tiny")});
    assert_eq!(source.call("/api/copy", &copy).await.0, 200);
    let manifest = stored::created(&source.home(), "tiny");
    (source, dead, manifest)
}

/// Starts a daemon for which `host` has these mirrors.
async fn client(host: &str, mirrors: &[&str]) -> Server {
    let urls: Vec<String> = mirrors.iter().map(|address| format!("\"http://{address}\"")).collect();
    let toml = format!("[registry.\"{host}\"]\nmirrors = [{}]\n", urls.join(", "));
    Server::prepared(&[], |home| registries(home, &toml)).await
}

/// Returns the largest blob of a model and its size.
fn largest(manifest: &Stored) -> (String, u64) {
    manifest.blobs().into_iter().max_by_key(|(_, size)| *size).expect("a model has blobs")
}

#[tokio::test]
async fn a_dead_mirror_is_passed_over() {
    let (source, dead, manifest) = mirrored().await;
    let gateway = Gateway::to(&source.address);
    let nobody = format!("127.0.0.1:{}", free_port());
    let target = client(&dead, &[&nobody, &gateway.address]).await;
    let name = format!("{dead}/library/tiny:latest");
    target.pull(&name).await;
    assert_eq!(gateway.fetched_bytes(), manifest.blobs().values().sum::<u64>());
    assert!(gateway.passed().iter().all(|passed| passed.target.contains("ns=")), "a mirror is told whose it is asked");
    assert_same((&source, &local("tiny")), (&target, &name)).await;
}

#[tokio::test]
async fn a_blob_that_a_mirror_lacks_comes_from_the_next() {
    let (source, dead, manifest) = mirrored().await;
    let (first, second) = (Gateway::to(&source.address), Gateway::to(&source.address));
    let (digest, size) = largest(&manifest);
    first.fault(&digest, Fault::Missing);
    let target = client(&dead, &[&first.address, &second.address]).await;
    let name = format!("{dead}/library/tiny:latest");
    target.pull(&name).await;
    assert!(second.fetched().contains(&digest) && second.fetched_bytes() >= size);
    let total = manifest.blobs().values().sum::<u64>();
    assert_eq!(first.fetched_bytes() + second.fetched_bytes(), total, "each blob comes once");
    assert_same((&source, &local("tiny")), (&target, &name)).await;
}

#[tokio::test]
async fn the_fastest_mirror_is_preferred() {
    let source = Server::start(&[]).await;
    source.create("m", llama(24, 128).path()).await;
    let dead = format!("127.0.0.1:{}", free_port());
    let copy = serde_json::json!({"source": "m", "destination": format!("{dead}/library/m")});
    assert_eq!(source.call("/api/copy", &copy).await.0, 200);
    let (slow, fast) = (Gateway::to(&source.address), Gateway::to(&source.address));
    // Of more than two hundred blobs, it gets the few with which it is measured.
    slow.limit_rate(1_000_000);
    let target = client(&dead, &[&slow.address, &fast.address]).await;
    target.pull(&format!("{dead}/library/m:latest")).await;
    let (slow, fast) = (slow.fetched_bytes(), fast.fetched_bytes());
    assert!(slow > 0 && slow < fast, "{slow} bytes came from the slow mirror, {fast} from the fast one");
}

#[tokio::test]
async fn a_blob_that_breaks_off_goes_on_elsewhere() {
    let source = Server::start(&[]).await;
    source.create("m", llama(1, 1024).path()).await;
    let manifest = stored::created(&source.home(), "m");
    let (mirror, registry) = (Gateway::to(&source.address), Gateway::to(&source.address));
    let (digest, size) = largest(&manifest);
    let copy = serde_json::json!({"source": "m", "destination": format!("{}/library/m", registry.address)});
    assert_eq!(source.call("/api/copy", &copy).await.0, 200);
    let target = client(&registry.address, &[&mirror.address]).await;
    mirror.fault(&digest, Fault::CutAfter(size / 2));
    let name = format!("{}/library/m:latest", registry.address);
    target.pull(&name).await;
    let of_blob = |gateway: &Gateway| {
        let requests = gateway.requests(&axum::http::Method::GET, &digest);
        requests.into_iter().filter_map(|passed| passed.range).collect::<Vec<_>>()
    };
    let ranges = [of_blob(&mirror), of_blob(&registry)].concat();
    let goes_on = |range: &String| range.starts_with("bytes=") && !range.starts_with("bytes=0-");
    assert!(ranges.iter().any(goes_on), "it began anew each time: {ranges:?}");
    assert_same((&source, &local("m")), (&target, &name)).await;
}

#[tokio::test]
async fn the_registry_itself_is_used_without_a_mirror() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let nobody = format!("127.0.0.1:{}", free_port());
    let target = client(&gateway.address, &[&nobody]).await;
    let name = format!("{}/library/tiny:latest", gateway.address);
    target.pull(&name).await;
    assert!(gateway.passed().iter().all(|passed| !passed.target.contains("ns=")));
    assert_same((&source, &local("tiny")), (&target, &name)).await;
}
