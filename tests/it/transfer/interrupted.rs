//! Pulls and pushes that are interrupted: by the client, and by `kill -9`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::gateway::Gateway;
use crate::peers::{DEFAULT_HOST, assert_same};
use crate::server::Server;
use crate::stored;
use crate::support::{say, until};
use crate::synthetic::llama;

use super::local;

/// Starts a daemon with a model of about 20 MB called `m`.
pub(super) async fn colleague() -> Server {
    let server = Server::start(&[]).await;
    server.create("m", llama(4, 512).path()).await;
    server
}

/// Returns the number of kills; `LODE_TEST_KILLS` overrides it.
pub(super) fn rounds() -> u64 {
    std::env::var("LODE_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// Returns moments spread over the duration of a transfer. The sequence is the same in each run.
fn moments() -> impl Iterator<Item = Duration> {
    (0..rounds()).map(|i| Duration::from_millis(1 + (i * 61) % 240))
}

/// Returns the bytes of blobs and of incomplete ingests in a store.
pub(super) fn received(home: &Path) -> u64 {
    let size = |path: std::path::PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    // An ingest may become a blob between the two: blobs are counted first, so that it counts once
    // or not at all.
    let folders = std::fs::read_dir(home.join("blobs/sha256")).into_iter().flatten().flatten();
    let blobs = folders.flat_map(|folder| std::fs::read_dir(folder.path()).into_iter().flatten().flatten());
    let complete: u64 = blobs.map(|entry| size(entry.path())).sum();
    let ingests = std::fs::read_dir(home.join("ingest")).into_iter().flatten().flatten();
    complete + ingests.map(|entry| size(entry.path().join("data"))).sum::<u64>()
}

/// Sends a request and reads its response until it ends or breaks.
pub(super) fn begin(server: &Server, path: &str, body: &serde_json::Value) -> JoinHandle<()> {
    let request = server.http.post(server.url(path)).json(body);
    tokio::spawn(async move {
        if let Ok(response) = request.send().await {
            // Waits until the daemon is gone.
            let _ = response.bytes().await;
        }
    })
}

#[tokio::test]
async fn a_cancelled_pull_goes_on_where_it_was() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let target = Server::start(&[]).await;
    let total: u64 = stored::created(&source.home(), "m").blobs().values().sum();
    let name = format!("{}/library/m:latest", gateway.address);
    gateway.hold_after(total / 2);
    let pull = begin(&target, "/api/pull", &json!({"model": name}));
    // The gateway holds whole pieces, so slightly less than half may arrive.
    gateway.reached(total / 2 - total / 8).await;
    until("a quarter is on the disk", async || received(&target.home()) >= total / 4).await;
    target.cancel().await;
    let _ = pull.await;
    gateway.idle().await;
    let (first, kept) = (gateway.fetched_bytes(), received(&target.home()));
    assert!(target.names().await.is_empty(), "half a model is no model");
    stored::blobs(&target.home());

    gateway.clear();
    gateway.release();
    target.pull(&name).await;
    let second = gateway.fetched_bytes();
    say(&format!("a pull of {total} bytes, cancelled after {first}, fetched {second} to go on"));
    assert!(second <= total - kept, "{second} of {total} bytes came again, {kept} were on the disk");
    assert_same((&source, &local("m")), (&target, &name)).await;
}

#[tokio::test]
async fn a_cancelled_push_goes_on_where_it_was() {
    let source = colleague().await;
    let target = Server::start(&[]).await;
    let gateway = Gateway::to(&target.address);
    let total: u64 = stored::created(&source.home(), "m").blobs().values().sum();
    let destination = format!("{}/library/m", gateway.address);
    let push = begin(&source, "/api/push", &json!({"model": "m", "destination": destination}));
    while gateway.uploaded_bytes() < total / 2 && !push.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    source.cancel().await;
    let _ = push.await;
    gateway.idle().await;
    let there: u64 = stored::blobs(&target.home()).values().sum();
    assert!(there > 0, "no blob arrived before the push was cancelled");
    gateway.clear();
    source.push("m", &destination).await;
    let again = gateway.uploaded_bytes();
    say(&format!("a push of {total} bytes, cancelled at half, sent {again} to go on"));
    assert!(again <= total - there, "{again} of {total} bytes went again, {there} were there");
    assert_same((&source, &local("m")), (&target, &local("m"))).await;
}

#[tokio::test]
async fn pulls_survive_kills() {
    let source = colleague().await;
    let name = format!("{}/library/m:latest", source.address);
    let expected = stored::created(&source.home(), "m");
    let mut target = Server::start(&[]).await;
    for (round, moment) in moments().enumerate() {
        let pull = begin(&target, "/api/pull", &json!({"model": name}));
        tokio::time::sleep(moment).await;
        target = target.restart(&[]).await;
        pull.await.expect("no panic");
        stored::blobs(&target.home());
        if target.names().await.contains(&name) {
            let (repository, tag) = name.rsplit_once(':').expect("a whole name");
            let manifest = stored::manifest(&target.home(), repository, tag);
            let here = stored::blobs(&target.home());
            let missing = manifest.missing(&here);
            assert!(manifest.digest == expected.digest && missing.is_empty(), "round {round}: {missing:?} are missing");
            // Removes the model so that the next round has to pull it again.
            target.remove(&name).await;
        }
    }
    target.pull(&name).await;
    assert_same((&source, &local("m")), (&target, &name)).await;
}

#[tokio::test]
async fn pushes_survive_kills_of_either_side() {
    let mut source = colleague().await;
    let mut target = Server::start(&[]).await;
    let expected = stored::created(&source.home(), "m");
    for (round, moment) in moments().enumerate() {
        let destination = format!("{}/me/m", target.address);
        let push = begin(&source, "/api/push", &json!({"model": "m", "destination": destination}));
        tokio::time::sleep(moment).await;
        if round % 2 == 0 {
            source = source.restart(&[]).await;
            push.await.expect("no panic");
        } else {
            target = target.restart(&[]).await;
            push.abort();
        }
        let here = stored::blobs(&target.home());
        if target.names().await.contains(&"me/m:latest".to_owned()) {
            let manifest = stored::manifest(&target.home(), &format!("{DEFAULT_HOST}/me/m"), "latest");
            let missing = manifest.missing(&here);
            assert!(manifest.digest == expected.digest && missing.is_empty(), "round {round}: {missing:?} are missing");
            target.remove("me/m").await;
        }
    }
    source.push("m", &format!("{}/me/m", target.address)).await;
    assert_same((&source, &local("m")), (&target, &format!("{DEFAULT_HOST}/me/m:latest"))).await;
}

/// Starts a proxy to a daemon. It cuts the first connection that has sent `limit` bytes; `sent`
/// counts the bytes of all connections.
async fn cutting(target: String, limit: u64) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound").to_string();
    let (sent, cut) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let counted = sent.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (target, sent, cut) = (target.clone(), counted.clone(), cut.clone());
            tokio::spawn(async move {
                let server = TcpStream::connect(target).await.expect("the daemon listens");
                let ((mut from, mut to), (mut answers, mut back)) = (client.into_split(), server.into_split());
                let downwards = tokio::spawn(async move { tokio::io::copy(&mut answers, &mut to).await });
                let (mut buffer, mut own) = (vec![0; 64 << 10], 0);
                while let Ok(count @ 1..) = from.read(&mut buffer).await {
                    own += count as u64;
                    sent.fetch_add(count as u64, Ordering::SeqCst);
                    if own >= limit && !cut.swap(true, Ordering::SeqCst) {
                        downwards.abort();
                        return;
                    }
                    if back.write_all(&buffer[..count]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, sent)
}

#[tokio::test]
async fn an_upload_that_breaks_off_is_gone_on_with() {
    let source = Server::start(&[]).await;
    source.create("m", llama(1, 1024).path()).await;
    let blobs = stored::created(&source.home(), "m").blobs();
    let (total, largest) = (blobs.values().sum::<u64>(), *blobs.values().max().expect("blobs"));
    assert!(largest > 4 << 20, "the model has no large blob");
    let target = Server::start(&[]).await;
    let (address, sent) = cutting(target.address.clone(), largest * 3 / 4).await;
    source.push("m", &format!("{address}/library/m")).await;
    assert_same((&source, &local("m")), (&target, &local("m"))).await;
    // Bytes that were in buffers at the cut are sent twice, and `sent` includes the heads of the
    // requests.
    let sent = sent.load(Ordering::SeqCst);
    assert!(sent < total + largest / 2, "{sent} bytes were sent of {total}: the upload began anew");
}
