//! Copies of tags of other registries.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::rules::{Image, audit, lines, rules, tags};
use super::seaweed::Seaweed;
use super::{Replica, client, program, status};
use crate::server::Server;

/// A registry with some tags, one of them an index whose manifest has no tag.
async fn source() -> (Replica, Image) {
    let source = Replica::start(&["--storage", "memory://"], &[]).await;
    let base = source.url("");
    for tag in ["v1", "v2", "latest"] {
        assert_eq!(Image::new(tag.as_bytes()).push(&base, "team/m", tag).await.0, 201);
    }
    let part = Image::new(b"part");
    assert_eq!(part.push(&base, "team/m", &part.digest().to_string()).await.0, 201);
    let kind = "application/vnd.oci.image.index.v1+json";
    let manifest = json!({
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": part.digest().to_string(),
        "size": part.manifest.len(),
    });
    let index = json!({"schemaVersion": 2, "mediaType": kind, "manifests": [manifest]});
    let request = client().put(source.url("/v2/team/m/manifests/multi")).header("Content-Type", kind);
    assert_eq!(request.body(index.to_string()).send().await.expect("an answer").status(), 201);
    assert_eq!(Image::new(b"other").push(&base, "other/m", "v1").await.0, 201);
    (source, part)
}

fn sync_of(address: &str, every: &str) -> String {
    format!(
        "[[sync]]\nregistry = {address:?}\nrepositories = [\"team/*\"]\ntags = [\"v*\", \"multi\"]\ninto = \"copy\"\nevery = {every:?}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_are_copied_to_a_bucket() {
    let Some(seaweed) = Seaweed::start("tags_are_copied_to_a_bucket").await else { return };
    let (source, part) = source().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let immutable = "[[repository]]\nnames = [\"copy/**\"]\nimmutable_tags = [\"v*\"]\n";
    let log = folder.path().join("audit.jsonl");
    let audited = format!("[audit]\nfile = {log:?}\n");
    let file = rules(folder.path(), &(sync_of(&source.address, "6h") + immutable + &audited));
    let sync = |more: &[&str]| {
        let arguments = [&["sync", "--storage", "s3://models/sync", "--rules", &file], more].concat();
        program(&arguments, &seaweed.environment(), folder.path()).output().expect("it runs")
    };
    let expected = ["copy/team/m:multi", "copy/team/m:v1", "copy/team/m:v2"];
    assert_eq!(lines(&sync(&["--dry-run"])), expected);
    assert_eq!(lines(&sync(&[])), expected);
    assert!(lines(&sync(&[])).is_empty(), "nothing has changed");
    let recorded = audit(&log);
    assert_eq!(recorded.len(), 3, "{recorded:?}");
    assert!(recorded.iter().all(|line| line["cause"] == "copy" && line["operation"] == "manifest.push"));

    let replica = Replica::start(&["--storage", "s3://models/sync", "--no-redirects"], &seaweed.environment()).await;
    let base = replica.url("");
    assert_eq!(tags(&base, "copy/team/m").await, json!(["multi", "v1", "v2"]));
    let manifest = replica.url(&format!("/v2/copy/team/m/manifests/{}", part.digest()));
    let manifest: Value = client().get(manifest).send().await.expect("an answer").json().await.expect("JSON");
    let layer = manifest["layers"][0]["digest"].as_str().expect("a digest");
    let blob = client().get(replica.url(&format!("/v2/copy/team/m/blobs/{layer}"))).send().await.expect("an answer");
    assert_eq!(blob.text().await.expect("a body"), "part");

    // A signature of a copied tag, and its own signature, are copied without a tag.
    let signed = Image::new(b"v1").signature(b"signature");
    let signature = signed.signature(b"of the signature");
    for image in [&signed, &signature] {
        assert_eq!(image.push(&source.url(""), "team/m", &image.digest().to_string()).await.0, 201);
    }
    assert_eq!(lines(&sync(&["--dry-run"])), ["copy/team/m:v1"]);
    assert_eq!(lines(&sync(&[])), ["copy/team/m:v1"]);
    assert!(lines(&sync(&[])).is_empty(), "nothing has changed");
    for image in [&signed, &signature] {
        let manifest = replica.url(&format!("/v2/copy/team/m/manifests/{}", image.digest()));
        assert_eq!(status(&client(), Method::GET, manifest).await, 200);
    }

    // A tag that may not change is reported; the others are copied.
    let moved = Image::new(b"moved");
    for tag in ["v1", "v3"] {
        assert_eq!(moved.push(&source.url(""), "team/m", tag).await.0, 201);
    }
    let done = sync(&[]);
    let message = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success() && message.contains("copy/team/m:v1: tag `v1` names"), "{message}");
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "copy/team/m:v3");
    drop(source);
    let done = sync(&[]);
    assert!(!done.status.success() && !done.stderr.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_are_copied_to_a_store() {
    let (source, part) = source().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = rules(folder.path(), &sync_of(&source.address, "1s"));
    let server = Server::start(&[("LODE_REGISTRY_RULES", &file)]).await;
    let base = server.url("").trim_end_matches('/').to_owned();
    let until = async |expect: Value| {
        let begin = Instant::now();
        while tags(&base, "copy/team/m").await != expect {
            assert!(begin.elapsed() < Duration::from_secs(30), "{}", server.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until(json!(["multi", "v1", "v2"])).await;
    let manifest = format!("{base}/v2/copy/team/m/manifests/{}", part.digest());
    assert_eq!(status(&client(), Method::GET, manifest).await, 200);
    assert_eq!(Image::new(b"new").push(&source.url(""), "team/m", "v3").await.0, 201);
    until(json!(["multi", "v1", "v2", "v3"])).await;
}
