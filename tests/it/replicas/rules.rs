//! Rules of repositories, the audit log, webhooks and metrics, over a registry in memory, a
//! daemon's store and `SeaweedFS`.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use content::Digest;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::seaweed::Seaweed;
use super::{Replica, client, program, status, upload};
use crate::server::Server;

/// An image with one layer.
pub(super) struct Image {
    layer: Vec<u8>,
    pub(super) manifest: Vec<u8>,
}

impl Image {
    pub(super) fn new(layer: &[u8]) -> Self {
        let descriptor = |media_type: &str, bytes: &[u8]| json!({"mediaType": media_type, "digest": Digest::of(bytes).to_string(), "size": bytes.len()});
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.empty.v1+json", b"{}"),
            "layers": [descriptor("application/octet-stream", layer)],
        });
        Self { layer: layer.to_vec(), manifest: manifest.to_string().into_bytes() }
    }

    pub(super) fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    /// An image about this one.
    pub(super) fn signature(&self, layer: &[u8]) -> Self {
        let mut manifest: Value = serde_json::from_slice(&Self::new(layer).manifest).expect("JSON");
        manifest["artifactType"] = "application/vnd.example.signature".into();
        manifest["subject"] = json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": self.digest().to_string(),
            "size": self.manifest.len(),
        });
        Self { layer: layer.to_vec(), manifest: manifest.to_string().into_bytes() }
    }

    /// Pushes the image, and returns the response to its manifest.
    pub(super) async fn push(&self, base: &str, repository: &str, reference: &str) -> (u16, String) {
        let http = client();
        for blob in [b"{}", &self.layer[..]] {
            assert_eq!(upload(&http, base, repository, blob).await.0, 201);
        }
        let url = format!("{base}/v2/{repository}/manifests/{reference}");
        let request = http.put(url).header("Content-Type", "application/vnd.oci.image.manifest.v1+json");
        let answer = request.body(self.manifest.clone()).send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    }
}

async fn delete(base: &str, repository: &str, reference: impl std::fmt::Display) -> u16 {
    status(&client(), Method::DELETE, format!("{base}/v2/{repository}/manifests/{reference}")).await
}

pub(super) async fn tags(base: &str, repository: &str) -> Value {
    let url = format!("{base}/v2/{repository}/tags/list");
    let listed: Value = client().get(url).send().await.expect("an answer").json().await.expect("JSON");
    listed["tags"].clone()
}

pub(super) fn rules(folder: &Path, text: &str) -> String {
    let path = folder.join("rules.toml");
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

const RULES: &str = r#"
[[repository]]
names = ["team/**"]
immutable_tags = ["v*"]
[[repository]]
names = ["small/*", "little"]
max_bytes = "1000"
"#;

/// The rules of tags and sizes hold over each kind of storage.
async fn keeps_rules(base: &str) {
    let [one, other] = [Image::new(b"one"), Image::new(b"other")];
    assert_eq!(one.push(base, "team/m", "v1").await.0, 201);
    assert_eq!(one.push(base, "team/m", "v1").await.0, 201, "the same manifest again");
    let (code, body) = other.push(base, "team/m", "v1").await;
    assert!(code == 409 && body.contains("v1") && body.contains(&one.digest().to_string()), "{code} {body}");
    let (code, _) = other.push(base, "team/m", &format!("{}?tag=v2&tag=v1", other.digest())).await;
    assert_eq!(code, 409, "a list of tags is set as a whole");
    assert_eq!(other.push(base, "team/m", "latest").await.0, 201);
    assert_eq!(one.push(base, "team/m", "latest").await.0, 201, "other tags may move");
    assert_eq!(delete(base, "team/m", "v1").await, 409);
    assert_eq!(delete(base, "team/m", one.digest()).await, 409, "its tag would go");
    assert_eq!(delete(base, "team/m", "latest").await, 202);
    assert_eq!(delete(base, "team/m", other.digest()).await, 202);
    assert_eq!(tags(base, "team/m").await, json!(["v1"]));

    let [half, rest] = [Image::new(&[1; 600]), Image::new(&[2; 600])];
    for repository in ["small/m", "little"] {
        assert_eq!(half.push(base, repository, "a").await.0, 201);
        let (code, body) = rest.push(base, repository, "b").await;
        assert!(code == 403 && body.contains("1.17 KiB") && body.contains("1000 B"), "{code} {body}");
        assert_eq!(half.push(base, repository, "b").await.0, 201, "its blobs are there already");
        assert_eq!(delete(base, repository, half.digest()).await, 202);
        assert_eq!(rest.push(base, repository, "b").await.0, 201, "there is room again");
    }
    assert_eq!(rest.push(base, "other/m", "b").await.0, 201);
}

#[tokio::test]
async fn rules_hold_in_memory() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let replica = Replica::start(&["--storage", "memory://", "--rules", &rules(folder.path(), RULES)], &[]).await;
    keeps_rules(&replica.url("")).await;
}

#[tokio::test]
async fn rules_hold_in_a_store() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = Server::start(&[("LODE_REGISTRY_RULES", &rules(folder.path(), RULES))]).await;
    keeps_rules(server.url("").trim_end_matches('/')).await;
    // `little` and `library/little` are the same repository of a store.
    let (code, _) = Image::new(&[3; 600]).push(server.url("").trim_end_matches('/'), "library/little", "c").await;
    assert_eq!(code, 403);
}

/// Two pushes of the same new tag: exactly one sets it.
#[tokio::test(flavor = "multi_thread")]
async fn an_immutable_tag_is_set_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let replica = Replica::start(&["--storage", "memory://", "--rules", &rules(folder.path(), RULES)], &[]).await;
    let base = replica.url("");
    for round in 0..10 {
        let images = [Image::new(format!("a{round}").as_bytes()), Image::new(format!("b{round}").as_bytes())];
        let tag = format!("v{round}");
        let (first, second) =
            tokio::join!(images[0].push(&base, "team/m", &tag), images[1].push(&base, "team/m", &tag));
        let mut codes = [first.0, second.0];
        codes.sort_unstable();
        assert_eq!(codes, [201, 409]);
    }
}

const RETENTION: &str = r#"
[[repository]]
names = ["team/**"]
immutable_tags = ["v*"]
untagged = "0s"
[[repository.keep]]
tags = ["n*"]
last = 2
[[repository.keep]]
tags = ["latest"]
"#;

/// Pushes images under these tags, one after the other, and an index whose manifest has no tag.
async fn fill(base: &str) -> (Digest, Digest) {
    for tag in ["latest", "v1", "n1", "n2", "n3", "old"] {
        assert_eq!(Image::new(tag.as_bytes()).push(base, "team/m", tag).await.0, 201);
    }
    let [part, loose] = [Image::new(b"part"), Image::new(b"loose")];
    for image in [&part, &loose] {
        assert_eq!(image.push(base, "team/m", &image.digest().to_string()).await.0, 201);
    }
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": part.digest().to_string(),
            "size": part.manifest.len(),
        }],
    });
    let url = format!("{base}/v2/team/m/manifests/latest");
    let request = client().put(url).header("Content-Type", "application/vnd.oci.image.index.v1+json");
    assert_eq!(request.body(index.to_string()).send().await.expect("an answer").status(), 201);
    assert_eq!(Image::new(b"x").push(base, "other/m", "old").await.0, 201);
    (part.digest(), loose.digest())
}

async fn has(base: &str, digest: &Digest) -> bool {
    status(&client(), Method::HEAD, format!("{base}/v2/team/m/manifests/{digest}")).await == 200
}

/// The lines that a retention of the content of [`fill`] prints.
fn expected(loose: &Digest) -> Vec<String> {
    // The first image named `latest` has lost its tag to the index.
    let digests = ["latest", "n1", "old"].map(|text| Image::new(text.as_bytes()).digest());
    let mut lines: Vec<String> = digests.iter().chain([loose]).map(|digest| format!("team/m@{digest}")).collect();
    lines.extend(["team/m:n1", "team/m:old"].map(str::to_owned));
    lines.sort();
    lines
}

pub(super) fn lines(output: &std::process::Output) -> Vec<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

async fn is_reduced(base: &str, (part, loose): (Digest, Digest)) {
    assert_eq!(tags(base, "team/m").await, json!(["latest", "n2", "n3", "v1"]));
    assert_eq!(tags(base, "other/m").await, json!(["old"]));
    assert!(has(base, &part).await && !has(base, &loose).await);
    assert!(!has(base, &Image::new(b"old").digest()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_removes_old_tags_from_a_bucket() {
    let Some(seaweed) = Seaweed::start("retention_removes_old_tags_from_a_bucket").await else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let arguments = ["--storage", "s3://models/retention"];
    let replica = Replica::start(&arguments, &seaweed.environment()).await;
    let base = replica.url("");
    let manifests = fill(&base).await;
    let log = folder.path().join("audit.jsonl");
    let rules = rules(folder.path(), &format!("{RETENTION}\n[audit]\nfile = {log:?}\n"));
    let retain = |more: &[&str]| {
        let arguments = [&["retain", "--storage", "s3://models/retention", "--rules", &rules], more].concat();
        program(&arguments, &seaweed.environment(), folder.path()).output().expect("it runs")
    };
    assert_eq!(lines(&retain(&["--dry-run"])), expected(&manifests.1));
    assert_eq!(tags(&base, "team/m").await.as_array().map(Vec::len), Some(6), "a dry run removes nothing");
    assert!(!log.exists());
    assert_eq!(lines(&retain(&[])), expected(&manifests.1));
    let mut recorded: Vec<String> = audit(&log).iter().map(removal).collect();
    recorded.sort();
    assert_eq!(recorded, expected(&manifests.1));
    is_reduced(&base, manifests).await;
    assert!(lines(&retain(&[])).is_empty());
}

/// The removed tag or manifest of a line of the audit log.
fn removal(line: &Value) -> String {
    assert!(line["cause"] == "retention" && line["operation"] == "manifest.delete" && line["status"] == 202, "{line}");
    let (repository, reference) = (line["repository"].as_str(), line["reference"].as_str());
    let reference = reference.expect("a reference");
    let separator = if reference.contains(':') { '@' } else { ':' };
    format!("{}{separator}{reference}", repository.expect("a repository"))
}

#[tokio::test]
async fn retention_removes_old_tags_from_a_store() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("audit.jsonl");
    let text = format!("{RETENTION}\n[audit]\nfile = {log:?}\n");
    let server = Server::start(&[("LODE_REGISTRY_RULES", &rules(folder.path(), &text))]).await;
    let base = server.url("").trim_end_matches('/').to_owned();
    let manifests = fill(&base).await;
    // No rule removes a pinned tag or its manifest.
    assert_eq!(Image::new(b"pinned").push(&base, "team/m", "pinned").await.0, 201);
    let pinned = server.lode(&["pin", "team/m:pinned"]);
    assert!(pinned.status.success(), "{}", String::from_utf8_lossy(&pinned.stderr));
    assert_eq!(lines(&server.lode(&["registry", "retain", "--dry-run"])), expected(&manifests.1));
    assert_eq!(lines(&server.lode(&["registry", "retain"])), expected(&manifests.1));
    let removals = audit(&log).into_iter().filter(|line| line.get("cause").is_some());
    let mut recorded: Vec<String> = removals.map(|line| removal(&line)).collect();
    recorded.sort();
    assert_eq!(recorded, expected(&manifests.1));
    assert!(server.lode(&["unpin", "team/m:pinned"]).status.success());
    assert_eq!(lines(&server.lode(&["registry", "retain"])).len(), 2, "a tag and its manifest");
    is_reduced(&base, manifests).await;
}

/// A tag whose manifest was pulled is kept.
#[tokio::test]
async fn retention_keeps_what_clients_pull() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = "[[repository]]\nnames = [\"team/**\"]\n[[repository.keep]]\ntags = [\"*\"]\npulled_within = \"90d\"\n";
    let server = Server::start(&[("LODE_REGISTRY_RULES", &rules(folder.path(), text))]).await;
    let base = server.url("").trim_end_matches('/').to_owned();
    for tag in ["pulled", "checked", "idle"] {
        assert_eq!(Image::new(tag.as_bytes()).push(&base, "team/m", tag).await.0, 201);
    }
    let old = || {
        for folder in ["tags", "used"] {
            make_old(&server.home().join(folder));
        }
    };
    old();
    let nothing: [&str; 0] = [];
    assert_eq!(lines(&server.lode(&["registry", "retain"])), nothing, "pulls before the first retention are unknown");
    old();
    let http = client();
    assert_eq!(status(&http, Method::GET, format!("{base}/v2/team/m/manifests/pulled")).await, 200);
    assert_eq!(status(&http, Method::HEAD, format!("{base}/v2/team/m/manifests/checked")).await, 200);
    assert_eq!(lines(&server.lode(&["registry", "retain"])), ["team/m:checked", "team/m:idle"]);
}

/// Gives all files below a folder a time of 100 days ago.
fn make_old(folder: &Path) {
    let time = std::time::SystemTime::now() - Duration::from_hours(24 * 100);
    for path in crate::support::entries(folder) {
        if path.is_dir() {
            make_old(&path);
        } else {
            std::fs::File::open(&path).and_then(|file| file.set_modified(time)).expect("a time");
        }
    }
}

/// A receiver of webhooks, which refuses the first request.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Vec<(HeaderMap, Value)>>>);

impl Receiver {
    async fn start() -> (Self, String) {
        let receiver = Self::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}/hook", listener.local_addr().expect("bound"));
        let take = |State(own): State<Self>, headers, body: String| async move { own.take(headers, &body) };
        let routes = Router::new().route("/hook", post(take)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (receiver, url)
    }

    fn taken(&self) -> Vec<(HeaderMap, Value)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take(&self, headers: HeaderMap, body: &str) -> StatusCode {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.push((headers, serde_json::from_str(body).expect("JSON")));
        if taken.len() == 1 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::NO_CONTENT }
    }

    async fn has(&self, number: usize) -> Vec<(HeaderMap, Value)> {
        let begin = Instant::now();
        while self.taken().len() < number {
            assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", self.taken());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.taken()
    }
}

async fn get(http: &Client, url: String) -> String {
    http.get(url).send().await.expect("an answer").text().await.expect("a body")
}

pub(super) fn audit(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the audit log");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[tokio::test]
async fn requests_are_recorded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (receiver, url) = Receiver::start().await;
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "Bearer hook\n").expect("written");
    let log = folder.path().join("audit.jsonl");
    let text = format!(
        "[audit]\nfile = {log:?}\n[[webhook]]\nurl = {url:?}\nrepositories = [\"team/*\"]\nauthorization_file = {secret:?}\nsource = \"https://r.example\"\n"
    );
    let replica = Replica::start(&["--storage", "memory://", "--rules", &rules(folder.path(), &text)], &[]).await;
    let (base, http) = (replica.url(""), client());
    let image = Image::new(b"one");
    let several = format!("{}?tag=a&tag=b", image.digest());
    assert_eq!(image.push(&base, "other/m", &several).await.0, 201, "no event");
    assert_eq!(image.push(&base, "team/m", "v1").await.0, 201);
    assert_eq!(get(&http, format!("{base}/v2/team/m/manifests/v1")).await.len(), image.manifest.len());
    assert_eq!(status(&http, Method::GET, format!("{base}/v2/team/m/manifests/none")).await, 404);
    assert_eq!(delete(&base, "team/m", "v1").await, 202);
    let page = http.delete(format!("{base}/v2/team/m/manifests/v1")).header("Origin", "https://page.example");
    assert_eq!(page.send().await.expect("an answer").status(), 403);

    let events = receiver.has(3).await;
    assert_eq!(events[0].1, events[1].1, "an event that was refused is repeated");
    assert_eq!(events[0].0["content-type"], "application/cloudevents+json");
    assert_eq!(events[0].0["authorization"], "Bearer hook");
    let event = &events[1].1;
    for (field, value) in [
        ("specversion", "1.0"),
        ("type", "lode.registry.manifest.pushed"),
        ("source", "https://r.example"),
        ("subject", "team/m:v1"),
    ] {
        assert_eq!(event[field], value, "{event}");
    }
    assert_eq!(event["data"]["digest"], json!(image.digest().to_string()));
    assert_eq!(event["data"]["media_type"], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(events[2].1["type"], "lode.registry.manifest.deleted");
    assert_ne!(events[2].1["id"], event["id"]);

    let lines = audit(&log);
    let found = |operation: &str, code: u16| {
        lines.iter().filter(|line| line["operation"] == operation && line["status"] == code).count()
    };
    assert_eq!((found("manifest.push", 201), found("blob.push", 201)), (2, 4), "{lines:?}");
    assert_eq!((found("manifest.pull", 200), found("manifest.pull", 404), found("manifest.delete", 202)), (1, 1, 1));
    assert_eq!(found("manifest.delete", 403), 1, "requests that are refused before they reach the registry count");
    let several = lines.iter().find(|line| line["operation"] == "manifest.push").expect("a push");
    assert_eq!(several["tags"], json!(["a", "b"]));
    let refused = lines.iter().find(|line| line["status"] == 404).expect("a refusal");
    assert!(refused["error"] == "MANIFEST_UNKNOWN" && refused["peer"] == "127.0.0.1", "{refused}");
    assert!(refused["reference"] == "none" && refused["repository"] == "team/m", "{refused}");

    let metrics = get(&http, format!("{base}/metrics")).await;
    for line in [
        "lode_registry_operations_total{repository=\"team/m\",operation=\"manifest.push\"} 1",
        &format!("lode_registry_received_bytes_total{{repository=\"other/m\"}} {}", image.manifest.len() + 5),
        "lode_webhook_events_total{result=\"repeated\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
}

/// Requests that the daemon's API keys refuse are in the audit log, each once.
#[tokio::test]
async fn requests_without_a_key_are_recorded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("audit.jsonl");
    let server = Server::start(&[]).await;
    let made = server.lode(&["key", "reader", "--scopes", "read"]);
    let keys = folder.path().join("keys");
    std::fs::write(&keys, &made.stdout).expect("written");
    let told = String::from_utf8_lossy(&made.stderr).into_owned();
    let key = told.split_whitespace().find(|word| word.starts_with("lode-")).expect("a key");
    let file = rules(folder.path(), &format!("[audit]\nfile = {log:?}\n"));
    let keys = keys.to_str().expect("UTF-8");
    let server = server.restart(&[("LODE_API_KEYS", keys), ("LODE_REGISTRY_RULES", &file)]).await;
    let url = server.url("/v2/team/m/manifests/v1");
    assert_eq!(status(&client(), Method::GET, url.clone()).await, 401);
    assert_eq!(status(&client(), Method::GET, server.url("/api/tags")).await, 401);
    let allowed = client().get(url).bearer_auth(key).send().await.expect("an answer");
    assert_eq!(allowed.status(), 404);
    let lines: Vec<(Value, Value)> =
        audit(&log).iter().map(|line| (line["operation"].clone(), line["status"].clone())).collect();
    assert_eq!(lines, [(json!("manifest.pull"), json!(401)), (json!("manifest.pull"), json!(404))]);
}

/// The audit log goes on in a new file after its file was moved, and events that wait are sent
/// before the process ends.
#[tokio::test]
async fn records_survive_rotation_and_the_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (receiver, url) = Receiver::start().await;
    let log = folder.path().join("audit.jsonl");
    let text = format!("[audit]\nfile = {log:?}\n[[webhook]]\nurl = {url:?}\n");
    let mut replica = Replica::start(&["--storage", "memory://", "--rules", &rules(folder.path(), &text)], &[]).await;
    let base = replica.url("");
    assert_eq!(Image::new(b"one").push(&base, "team/m", "v1").await.0, 201);
    std::fs::rename(&log, folder.path().join("audit.1")).expect("moved");
    let begin = Instant::now();
    while !log.exists() {
        assert!(begin.elapsed() < Duration::from_secs(30), "no new file");
        assert_eq!(status(&client(), Method::GET, format!("{base}/v2/")).await, 200);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The first attempt was refused, so the event of the second push waits.
    assert_eq!(Image::new(b"two").push(&base, "team/m", "v2").await.0, 201);
    let told = std::process::Command::new("kill").arg(replica.child.id().to_string()).status();
    assert!(told.expect("kill runs").success());
    let begin = Instant::now();
    while replica.child.try_wait().expect("a child").is_none() {
        assert!(begin.elapsed() < Duration::from_secs(30), "the replica does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let subjects: Vec<Value> = receiver.taken().into_iter().map(|(_, event)| event["subject"].clone()).collect();
    assert_eq!(subjects.last(), Some(&json!("team/m:v2")), "{subjects:?}");
    assert!(audit(&log).iter().any(|line| line["reference"] == "v2"));
}
