//! Mirrors of a registry: they are tried in order, and each replaces its predecessor if that fails
//! or lacks content.

use crate::gateway::{Fault, Gateway};
use crate::peers::{assert_same, registries};
use crate::server::{Server, free_port};
use crate::stored::{self, Stored};

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
    assert_eq!(second.fetched().into_iter().collect::<Vec<_>>(), [digest]);
    assert_eq!(second.fetched_bytes(), size);
    assert_same((&source, &local("tiny")), (&target, &name)).await;
}

#[tokio::test]
async fn a_blob_that_breaks_off_goes_on_elsewhere() {
    let (source, dead, manifest) = mirrored().await;
    let (first, second) = (Gateway::to(&source.address), Gateway::to(&source.address));
    let (digest, size) = largest(&manifest);
    let target = client(&dead, &[&first.address, &second.address]).await;
    first.fault(&digest, Fault::CutAfter(size / 10));
    let name = format!("{dead}/library/tiny:latest");
    target.pull(&name).await;
    let of_blob = |gateway: &Gateway| {
        let requests = gateway.requests(&axum::http::Method::GET, &digest);
        requests.into_iter().filter_map(|passed| passed.range).collect::<Vec<_>>()
    };
    let ranges = [of_blob(&first), of_blob(&second)].concat();
    let goes_on = |range: &String| range.starts_with("bytes=") && !range.starts_with("bytes=0-");
    assert!(ranges.iter().any(goes_on), "it began anew each time: {ranges:?}");
    assert_same((&source, &local("tiny")), (&target, &name)).await;
}

#[tokio::test]
async fn the_registry_itself_is_the_last_mirror() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let nobody = format!("127.0.0.1:{}", free_port());
    let target = client(&gateway.address, &[&nobody]).await;
    let name = format!("{}/library/tiny:latest", gateway.address);
    target.pull(&name).await;
    assert!(gateway.passed().iter().all(|passed| !passed.target.contains("ns=")));
    assert_same((&source, &local("tiny")), (&target, &name)).await;
}
