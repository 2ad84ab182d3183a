//! Copies of other registries' content, made when a client asks for it (`LODE_PULL_THROUGH`).

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Method};
use axum::response::IntoResponse;
use content::Digest;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::rules::{Image, rules, tags};
use super::seaweed::Seaweed;
use super::{Replica, client, fails, status, upload};
use crate::gateway::{Fault, Gateway};
use crate::real_registry::DockerRegistry;
use crate::server::Server;
use crate::service::Service;
use crate::support::{skip, tiny_model};

/// The prefix of the copies of a registry.
fn prefix(address: &str) -> String {
    address.replace(':', "_")
}

/// A replica in memory that copies from these registries.
async fn copying(registry: &str) -> Replica {
    Replica::start(&["--storage", "memory://"], &[("LODE_PULL_THROUGH".to_owned(), registry.to_owned())]).await
}

/// A registry, and a proxy in front of it that records requests.
async fn upstream() -> (Replica, Gateway) {
    let registry = Replica::start(&["--storage", "memory://"], &[]).await;
    let gateway = Gateway::to(&registry.address);
    (registry, gateway)
}

async fn text(url: String) -> (u16, String) {
    let answer = client().get(url).send().await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("a body"))
}

fn blob_of(layer: &[u8]) -> String {
    format!("blobs/{}", Digest::of(layer))
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_copied_when_a_client_asks() {
    let (registry, gateway) = upstream().await;
    let (first, second) = (Image::new(b"first"), Image::new(b"second"));
    for (image, tag) in [(&first, "v1"), (&second, "v2")] {
        assert_eq!(image.push(&registry.url(""), "team/m", tag).await.0, 201);
    }
    let replica = copying(&gateway.address).await;
    let own = format!("{}/team/m", prefix(&gateway.address));
    let at = |of: &str| replica.url(&format!("/v2/{own}/{of}"));
    let manifest = |image: &Image| (200, String::from_utf8(image.manifest.clone()).expect("UTF-8"));
    assert_eq!(text(at("manifests/v1")).await, manifest(&first));
    let layer = at(&blob_of(b"first"));
    assert_eq!(status(&client(), Method::HEAD, layer.clone()).await, 200);
    assert_eq!(text(layer.clone()).await, (200, "first".to_owned()));
    // A client that uses the replica as a mirror finds the same copies.
    let mirrored = |of: &str| replica.url(&format!("/v2/team/m/{of}?ns={}", gateway.address));
    assert_eq!(text(mirrored(&blob_of(b"first"))).await.1, "first");
    assert_eq!(text(mirrored("manifests/v1")).await, manifest(&first));
    assert_eq!(gateway.requests(&Method::GET, "/blobs/").len(), 1, "{:?}", gateway.passed());
    assert_eq!(gateway.requests(&Method::GET, "/manifests/").len(), 1, "{:?}", gateway.passed());
    // Content that does not exist.
    for absent in ["manifests/v9", &format!("manifests/{}", Digest::of(b"no")), &blob_of(b"no")] {
        assert_eq!(text(at(absent)).await.0, 404, "{absent}");
    }
    assert_eq!(text(replica.url("/v2/other.example/team/m/manifests/v1")).await.0, 404);
    // A moved tag is seen at once.
    assert_eq!(second.push(&registry.url(""), "team/m", "v1").await.0, 201);
    assert_eq!(text(at("manifests/v1")).await, manifest(&second));
    assert_eq!(tags(&replica.url(""), &own).await, json!(["v1", "v2"]));
    // The copy is complete without the other registry, as far as clients have read it.
    let gateway_address = gateway.address.clone();
    drop((registry, gateway));
    assert_eq!(text(at("manifests/v1")).await, manifest(&second));
    assert_eq!(text(at(&format!("manifests/{}", first.digest()))).await, manifest(&first));
    assert_eq!(text(layer).await.1, "first");
    assert_eq!(tags(&replica.url(""), &own).await, json!(["v1"]));
    for absent in ["manifests/v2", &blob_of(b"second")] {
        let (code, body) = text(at(absent)).await;
        assert!(code == 503 && body.contains(&gateway_address), "{absent}: {code} {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_cannot_be_pushed_but_deleted() {
    let (registry, gateway) = upstream().await;
    let image = Image::new(b"layer");
    assert_eq!(image.push(&registry.url(""), "m", "v1").await.0, 201);
    let replica = copying(&gateway.address).await;
    let own = format!("{}/m", prefix(&gateway.address));
    let (code, body) = upload(&client(), &replica.url(""), &own, b"pushed").await;
    assert!(code == 403 && body.contains("is a copy of"), "{code} {body}");
    let manifest = replica.url(&format!("/v2/{own}/manifests/v1"));
    let put = client().put(&manifest).body(image.manifest.clone()).send().await.expect("an answer");
    assert_eq!(put.status(), 403);
    assert_eq!(upload(&client(), &replica.url(""), "own/m", b"pushed").await.0, 201);
    assert_eq!(text(manifest.clone()).await.0, 200);
    let copy = replica.url(&format!("/v2/{own}/manifests/{}", image.digest()));
    assert_eq!(status(&client(), Method::DELETE, copy).await, 202);
    // It is copied again, with a tag.
    assert_eq!(text(manifest).await.0, 200);
    assert_eq!(gateway.requests(&Method::GET, "/manifests/").len(), 2);
}

/// A client gets the bytes of a blob while they arrive; a second one waits for the same transfer.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_reach_the_client_during_the_transfer() {
    let (registry, gateway) = upstream().await;
    let layer: Vec<u8> = (0..40_u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    assert_eq!(Image::new(&layer).push(&registry.url(""), "m", "v1").await.0, 201);
    let replica = copying(&gateway.address).await;
    let url = replica.url(&format!("/v2/{}/m/{}", prefix(&gateway.address), blob_of(&layer)));
    gateway.hold_after(5 << 20);
    let answer = client().get(&url).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let mut bytes = answer.bytes_stream();
    let mut received = Vec::new();
    while received.len() < 4 << 20 {
        received.extend_from_slice(&bytes.next().await.expect("more").expect("bytes"));
    }
    let other = tokio::spawn(client().get(&url).header("Range", "bytes=7-20").send());
    let third = tokio::spawn(client().get(&url).send());
    gateway.release();
    while let Some(piece) = bytes.next().await {
        received.extend_from_slice(&piece.expect("bytes"));
    }
    assert!(received == layer, "{} bytes", received.len());
    let part = other.await.expect("a task").expect("an answer");
    assert_eq!((part.status().as_u16(), &part.bytes().await.expect("bytes")[..]), (206, &layer[7..=20]));
    assert!(third.await.expect("a task").expect("an answer").bytes().await.expect("bytes") == layer);
    assert_eq!(gateway.requests(&Method::GET, "/blobs/").len(), 1, "{:?}", gateway.passed());
}

/// A transfer goes on when its client has left, and after a broken connection.
#[tokio::test(flavor = "multi_thread")]
async fn transfers_survive_clients_and_connections() {
    let (registry, gateway) = upstream().await;
    let layer = vec![3; 20 << 20];
    assert_eq!(Image::new(&layer).push(&registry.url(""), "m", "v1").await.0, 201);
    let replica = copying(&gateway.address).await;
    let url = replica.url(&format!("/v2/{}/m/{}", prefix(&gateway.address), blob_of(&layer)));
    gateway.fault(&Digest::of(&layer).to_string(), Fault::CutAfter(12 << 20));
    gateway.hold_after(1 << 20);
    let mut answer = client().get(&url).send().await.expect("an answer");
    assert!(answer.chunk().await.expect("bytes").is_some());
    drop(answer);
    gateway.release();
    let second = client().get(&url).send().await.expect("an answer");
    assert!(second.bytes().await.expect("bytes") == layer);
    let ranges: Vec<_> = gateway.requests(&Method::GET, "/blobs/").iter().map(|passed| passed.range.clone()).collect();
    assert!(ranges.len() == 2 && ranges[0].is_none() && ranges[1].is_some(), "{ranges:?}");
}

/// A registry that sends other bytes than it says. The client sees that the blob is incomplete, and
/// nothing is stored.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_are_not_copied() {
    let layer = vec![1; 3 << 20];
    let wrong = vec![2; 3 << 20];
    let service = Service::start(Router::new().fallback(move || async move { wrong }));
    let replica = copying(&service.address).await;
    let url = replica.url(&format!("/v2/{}/m/{}", prefix(&service.address), blob_of(&layer)));
    for _ in 0..2 {
        match client().get(&url).send().await {
            Ok(answer) if answer.status() == 200 => assert!(answer.bytes().await.is_err(), "the blob is incomplete"),
            Ok(answer) => assert_eq!(answer.status(), 502),
            Err(error) => panic!("no answer: {error}"),
        }
    }
    assert!(replica.text().contains("a blob was not copied"), "{}", replica.text());
}

/// Lode's client reads large blobs in ranges.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_of_a_large_blob_are_read() {
    let (registry, gateway) = upstream().await;
    let layer: Vec<u8> = (0..17_u32 << 20).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    assert_eq!(Image::new(&layer).push(&registry.url(""), "m", "v1").await.0, 201);
    let replica = copying(&gateway.address).await;
    let url = replica.url(&format!("/v2/{}/m/{}", prefix(&gateway.address), blob_of(&layer)));
    let part = async |start: usize| {
        let range = format!("bytes={start}-{}", layer.len().min(start + (4 << 20)) - 1);
        let answer = client().get(&url).header("Range", range).send().await.expect("an answer");
        assert_eq!(answer.status(), 206);
        answer.bytes().await.expect("bytes")
    };
    let parts = futures_util::future::join_all((0..layer.len()).step_by(4 << 20).map(part)).await;
    assert!(parts.concat() == layer);
    assert_eq!(gateway.fetched_bytes(), layer.len() as u64, "one transfer");
}

/// A transfer that never ends does not stop a client that can get its bytes from the registry.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_does_not_wait_for_a_long_transfer() {
    let layer: Vec<u8> = (0..3 << 20).map(|n: u32| (n % 251) as u8).collect();
    let all = layer.clone();
    let service = Service::start(Router::new().fallback(move |headers: HeaderMap, request: Request| {
        let (all, range) = (all.clone(), headers.get("range").map(|range| range.to_str().expect("text").to_owned()));
        async move {
            if request.method() == Method::HEAD {
                return ([("content-length", all.len().to_string())], Body::empty()).into_response();
            }
            let Some(range) = range else {
                let beginning = stream::iter([Ok::<_, std::io::Error>(all[..1 << 20].to_vec())]);
                let body = Body::from_stream(beginning.chain(stream::pending()));
                return ([("content-length", all.len().to_string())], body).into_response();
            };
            let (start, end) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')).expect("a range");
            let (start, end): (usize, usize) = (start.parse().expect("a number"), end.parse().expect("a number"));
            let headers = [("content-range", format!("bytes {start}-{end}/{}", all.len()))];
            (axum::http::StatusCode::PARTIAL_CONTENT, headers, all[start..=end].to_vec()).into_response()
        }
    }));
    let replica = copying(&service.address).await;
    let url = replica.url(&format!("/v2/{}/m/{}", prefix(&service.address), blob_of(&layer)));
    let whole = client().get(&url).send();
    let part = client().get(&url).header("Range", "bytes=2000000-2000099").send();
    let (whole, part) = tokio::join!(whole, part);
    assert!(part.expect("an answer").bytes().await.expect("bytes") == layer[2_000_000..2_000_100]);
    assert!(whole.expect("an answer").bytes().await.expect("bytes") == layer);
}

/// A tag that may not change stays as it was copied, and its registry is not asked again.
#[tokio::test(flavor = "multi_thread")]
async fn immutable_tags_stay() {
    let (registry, gateway) = upstream().await;
    let (first, second) = (Image::new(b"first"), Image::new(b"second"));
    assert_eq!(first.push(&registry.url(""), "m", "v1").await.0, 201);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = rules(folder.path(), "[[repository]]\nnames = [\"**\"]\nimmutable_tags = [\"v*\"]\n");
    let environment = [("LODE_PULL_THROUGH".to_owned(), gateway.address.clone())];
    let replica = Replica::start(&["--storage", "memory://", "--rules", &file], &environment).await;
    let url = replica.url(&format!("/v2/{}/m/manifests/v1", prefix(&gateway.address)));
    assert_eq!(text(url.clone()).await.1.as_bytes(), first.manifest);
    assert_eq!(second.push(&registry.url(""), "m", "v1").await.0, 201);
    gateway.clear();
    assert_eq!(text(url).await.1.as_bytes(), first.manifest);
    assert!(gateway.passed().is_empty(), "{:?}", gateway.passed());
}

/// A daemon that uses the replica as a mirror gets copies; another server that copies does not, so
/// that two of them do not ask each other forever.
#[tokio::test(flavor = "multi_thread")]
async fn forwarded_requests_end() {
    let (registry, gateway) = upstream().await;
    assert_eq!(Image::new(b"layer").push(&registry.url(""), "m", "v1").await.0, 201);
    let replica = copying(&gateway.address).await;
    let url = replica.url(&format!("/v2/m/manifests/v1?ns={}", gateway.address));
    for (mark, expected) in [("copy", 404), ("1", 200), ("copy", 200)] {
        let answer = client().get(&url).header("lode-mirrored", mark).send().await.expect("an answer");
        assert_eq!(answer.status(), expected, "{mark}");
    }
    assert_eq!(gateway.requests(&Method::GET, "/manifests/").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn referrers_are_copied() {
    let (registry, gateway) = upstream().await;
    let image = Image::new(b"subject");
    assert_eq!(image.push(&registry.url(""), "m", "v1").await.0, 201);
    let signature = image.signature(b"signature");
    assert_eq!(signature.push(&registry.url(""), "m", &signature.digest().to_string()).await.0, 201);
    let replica = copying(&gateway.address).await;
    let own = format!("{}/m", prefix(&gateway.address));
    let listed = text(replica.url(&format!("/v2/{own}/referrers/{}", image.digest()))).await.1;
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!(listed["manifests"][0]["digest"], signature.digest().to_string(), "{listed}");
    assert_eq!(text(replica.url(&format!("/v2/{own}/{}", blob_of(b"signature")))).await.1, "signature");
}

/// Daemons pull a model through two replicas at once; the registry sends each blob to one or both
/// of them, and later to none.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_pulled_through_two_replicas() {
    let Some(seaweed) = Seaweed::start("a_model_is_pulled_through_two_replicas").await else { return };
    let (registry, gateway) = upstream().await;
    let sender = Server::start(&[]).await;
    sender.create("mine", &tiny_model()).await;
    let done = sender.lode(&["push", "mine", &format!("{}/team/mine:1", registry.address)]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut environment = seaweed.environment();
    environment.push(("LODE_PULL_THROUGH".to_owned(), gateway.address.clone()));
    let arguments = ["--storage", "s3://models/copies"];
    let replicas = [Replica::start(&arguments, &environment).await, Replica::start(&arguments, &environment).await];
    let pull = async |replica: &Replica| {
        let receiver = Server::start(&[]).await;
        let name = format!("{}/{}/team/mine:1", replica.address, prefix(&gateway.address));
        let done = receiver.lode(&["pull", &name]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        crate::stored::blobs(&receiver.home())
    };
    let (first, second) = tokio::join!(pull(&replicas[0]), pull(&replicas[1]));
    let sent = crate::stored::blobs(&sender.home());
    assert!(!first.is_empty() && first.keys().all(|blob| sent.contains_key(blob)));
    assert!(first.keys().eq(second.keys()));
    gateway.clear();
    assert_eq!(pull(&replicas[1]).await.len(), first.len());
    assert!(gateway.requests(&Method::GET, "").is_empty(), "{:?}", gateway.passed());
    // All of it stays through a collection.
    let gc = super::program(&["gc", "--storage", "s3://models/copies"], &environment, sender.home().as_path());
    let done = tokio::process::Command::from(gc).output().await.expect("it runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(pull(&replicas[0]).await.len(), first.len());
    assert!(gateway.requests(&Method::GET, "").is_empty(), "{:?}", gateway.passed());
}

#[tokio::test(flavor = "multi_thread")]
async fn skopeo_pulls_from_docker_registry_through_a_replica() {
    const TEST: &str = "replicas::copies::skopeo_pulls_from_docker_registry_through_a_replica";
    if std::process::Command::new("skopeo").arg("--version").output().is_err() {
        return skip(TEST, "there is no skopeo; scripts/test installs it");
    }
    let Some(registry) = DockerRegistry::start(TEST, None).await else { return };
    let image = Image::new(&vec![9; 2 << 20]);
    let origin = Replica::start(&["--storage", "memory://"], &[]).await;
    assert_eq!(image.push(&origin.url(""), "m", "v1").await.0, 201);
    let skopeo = async |from: &str, to: &str| {
        let mut command = tokio::process::Command::new("skopeo");
        command.args(["--insecure-policy", "copy", "--src-tls-verify=false", "--dest-tls-verify=false", from, to]);
        let done = command.output().await.expect("it runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let there = format!("{}/team/m:v1", registry.address);
    skopeo(&format!("docker://{}/m:v1", origin.address), &format!("docker://{there}")).await;
    let replica = copying(&registry.address).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let copy = format!("docker://{}/{}/team/m:v1", replica.address, prefix(&registry.address));
    skopeo(&copy, &format!("dir:{}", folder.path().display())).await;
    assert_eq!(std::fs::read(folder.path().join("manifest.json")).expect("a manifest"), image.manifest);
}

/// Many clients that ask at once cause one request for the manifest.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_is_fetched_once() {
    let (registry, gateway) = upstream().await;
    assert_eq!(Image::new(b"layer").push(&registry.url(""), "m", "v1").await.0, 201);
    let replica = copying(&gateway.address).await;
    let url = replica.url(&format!("/v2/{}/m/manifests/v1", prefix(&gateway.address)));
    let all = futures_util::future::join_all((0..20).map(|_| text(url.clone()))).await;
    assert!(all.iter().all(|(code, _)| *code == 200));
    assert_eq!(gateway.requests(&Method::GET, "/manifests/").len(), 1);
}

#[tokio::test]
async fn a_host_that_no_name_can_begin_with_is_refused() {
    let error = fails(&["--storage", "memory://"], &[("LODE_PULL_THROUGH".to_owned(), "[::1]:5000".to_owned())]).await;
    assert!(error.contains("LODE_PULL_THROUGH: `[::1]:5000` cannot be"), "{error}");
    let error = fails(&["--storage", "memory://"], &[("LODE_PULL_THROUGH".to_owned(), "harbor".to_owned())]).await;
    assert!(error.contains("LODE_PULL_THROUGH: `harbor` is not a registry"), "{error}");
}

/// A client that reads nothing gets the rest of the blob from the copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_reading_does_not_stop_the_transfer() {
    let (registry, gateway) = upstream().await;
    let layer = vec![5; 48 << 20];
    assert_eq!(Image::new(&layer).push(&registry.url(""), "m", "v1").await.0, 201);
    let replica = copying(&gateway.address).await;
    let url = replica.url(&format!("/v2/{}/m/{}", prefix(&gateway.address), blob_of(&layer)));
    let mut slow = client().get(&url).send().await.expect("an answer");
    let mut received = slow.chunk().await.expect("bytes").expect("a piece").len();
    let other = client().get(&url).send().await.expect("an answer");
    assert!(other.bytes().await.expect("bytes") == layer);
    while let Some(piece) = slow.chunk().await.expect("bytes") {
        received += piece.len();
    }
    assert_eq!(received, layer.len());
}
