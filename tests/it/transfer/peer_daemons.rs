//! `LODE_PEERS`: daemons that are asked for blobs before the registry.

use serde_json::json;

use crate::gateway::Gateway;
use crate::peers::{assert_same, registries};
use crate::server::{Server, free_port};
use crate::stored;

use super::{colleague, local};

/// A daemon that has pulled a model through a gateway to its registry. The name of the model.
async fn with_model(gateway: &Gateway) -> (Server, String) {
    let peer = Server::start(&[]).await;
    let name = format!("{}/library/tiny:latest", gateway.address);
    peer.pull(&name).await;
    gateway.clear();
    (peer, name)
}

#[tokio::test]
async fn blobs_come_from_a_peer_and_tags_from_the_registry() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let (peer, name) = with_model(&gateway).await;
    // The second peer does not exist.
    let peers = format!("{},127.0.0.1:{}", peer.address, free_port());
    let target = Server::start(&[("LODE_PEERS", &peers)]).await;
    target.pull(&name).await;
    assert_eq!(gateway.fetched_bytes(), 0, "all blobs come from the peer");
    assert_same((&source, &local("tiny")), (&target, &name)).await;
    // The registry has another model now; the peer still has the former one.
    source.create("other", super::llama(2, 64).path()).await;
    let copy = json!({"source": "other", "destination": "tiny"});
    assert_eq!(source.call("/api/copy", &copy).await.0, 200);
    target.pull(&name).await;
    assert_same((&source, &local("tiny")), (&target, &name)).await;
    assert!(gateway.fetched_bytes() > 0, "the peer does not have the new blobs");
}

#[tokio::test]
async fn a_peer_with_wrong_bytes_or_without_permission_is_passed_over() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let (peer, name) = with_model(&gateway).await;
    let manifest = stored::created(&source.home(), "tiny");
    let (digest, size) = manifest.blobs().into_iter().max_by_key(|(_, size)| *size).expect("a blob");
    let path = stored::path(&peer.home(), &digest);
    std::fs::remove_file(&path).expect("damage");
    std::fs::write(&path, vec![7; usize::try_from(size).expect("small")]).expect("damage");
    let target = Server::start(&[("LODE_PEERS", &peer.address)]).await;
    target.pull(&name).await;
    assert_eq!(gateway.fetched().into_iter().collect::<Vec<_>>(), [digest]);
    assert_same((&source, &local("tiny")), (&target, &name)).await;

    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys");
    let line = peer.lode(&["key", "laptop", "--scopes", "read"]);
    std::fs::write(&keys, &line.stdout).expect("a file of keys");
    let peer = peer.restart(&[("LODE_API_KEYS", keys.to_str().expect("a path"))]).await;
    gateway.clear();
    let target = Server::start(&[("LODE_PEERS", &peer.address)]).await;
    target.pull(&name).await;
    assert_eq!(gateway.fetched().len(), manifest.blobs().len(), "without a key, the peer gives nothing");
}

#[tokio::test]
async fn a_peer_that_is_no_host_is_refused() {
    let server = Server::prepared(&[], |home| registries(home, "")).await;
    let said = server.lode_with(&[("LODE_PEERS", "http://me:secret@x/y")], &["list"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("LODE_PEERS: `x/y` is not a host; expected e.g. gpu1") && !said.contains("secret"), "{said}");
}

/// A converted model is read in parts, which are verified only at the end. So peers are not asked.
#[tokio::test]
async fn parts_of_files_do_not_come_from_peers() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let watched = Gateway::to(&source.address);
    let target = Server::start(&[("LODE_PEERS", &watched.address)]).await;
    let planned = target.lode(&["plan", &format!("{}/library/tiny", gateway.address)]);
    assert!(planned.status.success(), "{planned:?}");
    assert!(!gateway.passed().is_empty() && watched.passed().is_empty(), "{:?}", watched.passed());
}
