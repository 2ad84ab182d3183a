//! Pushers, collectors and replicas that are killed, on a network that is cut.
//!
//! `LODE_TEST_REPLICA_SECONDS` sets the duration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use content::Digest;
use reqwest::{Client, Method};

use super::{Balancer, Replica, Seaweed, client, program};
use crate::support::{number, say};

/// Number of layers of an image.
const LAYERS: usize = 3;
/// Number of tries of each request. A replica that was killed is back within some of them.
const TRIES: usize = 60;

/// A client that pushes images, and deletes some of them.
struct Pusher {
    http: Client,
    base: String,
    number: usize,
    ends: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
}

/// An image that was acknowledged and not deleted.
#[derive(Clone, Debug)]
struct Pushed {
    repository: String,
    tag: String,
    manifest: Digest,
    layers: Vec<Digest>,
}

impl Pusher {
    async fn run(self) -> Vec<Pushed> {
        let mut pushed = Vec::new();
        let mut round = 0;
        while !self.ends.load(Ordering::SeqCst) {
            if let Some(image) = self.push(round).await {
                self.acknowledged.fetch_add(1, Ordering::SeqCst);
                pushed.push(image);
            }
            // Its blobs become garbage, and later images use some of them again.
            if round % 3 == 2 && !pushed.is_empty() && self.delete(&pushed[0]).await {
                pushed.remove(0);
            }
            round += 1;
        }
        pushed
    }

    /// Layers of several rounds and pushers are the same.
    fn layer(&self, round: usize, index: usize) -> Vec<u8> {
        let seed = (round / 2 + index * 7 + self.number % 2) as u8;
        (0..40_000 + 1000 * index).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect()
    }

    async fn push(&self, round: usize) -> Option<Pushed> {
        let repository = format!("team/m{}", self.number % 2);
        let layers: Vec<Vec<u8>> = (0..LAYERS).map(|index| self.layer(round, index)).collect();
        let digests: Vec<Digest> = layers.iter().map(|layer| Digest::of(layer)).collect();
        let descriptors: Vec<String> = layers.iter().map(|layer| descriptor(layer)).collect();
        let raw = format!(
            "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{},\
             \"layers\":[{}],\"annotations\":{{\"round\":\"{}-{round}\"}}}}",
            descriptors[0],
            descriptors.join(","),
            self.number
        );
        let tag = format!("t{}-{}", self.number, round % 5);
        for _ in 0..TRIES {
            for layer in &layers {
                self.send_layer(&repository, layer).await?;
            }
            let put = self.http.put(format!("{}/v2/{repository}/manifests/{tag}", self.base));
            let put = put.header("Content-Type", "application/vnd.oci.image.manifest.v1+json").body(raw.clone());
            match put.send().await.map(|answer| answer.status().as_u16()) {
                Ok(201) => {
                    let manifest = Digest::of(raw.as_bytes());
                    return Some(Pushed { repository, tag, manifest, layers: digests });
                }
                // A collector came first; the client is told, and sends the blob again.
                Ok(400 | 404 | 409 | 500..) | Err(_) => self.rest().await,
                Ok(other) => panic!("a manifest: {other}"),
            }
        }
        None
    }

    /// Sends a layer in two chunks, unless the registry has it.
    async fn send_layer(&self, repository: &str, layer: &[u8]) -> Option<()> {
        let digest = Digest::of(layer);
        for _ in 0..TRIES {
            let blob = format!("{}/v2/{repository}/blobs/{digest}", self.base);
            if self.ask(Method::HEAD, &blob, &[]).await.is_some_and(|(status, _)| status == 200) {
                return Some(());
            }
            if self.send_chunks(repository, layer, &digest).await == Some(201) {
                return Some(());
            }
            self.rest().await;
        }
        None
    }

    async fn send_chunks(&self, repository: &str, layer: &[u8], digest: &Digest) -> Option<u16> {
        let (_, place) = self.ask(Method::POST, &format!("{}/v2/{repository}/blobs/uploads/", self.base), &[]).await?;
        let place = format!("{}{}", self.base, place?);
        let (first, last) = layer.split_at(layer.len() / 2);
        let (status, _) = self.ask(Method::PATCH, &place, first).await?;
        if status != 202 {
            return Some(status);
        }
        let (status, _) = self.ask(Method::PUT, &format!("{place}?digest={digest}"), last).await?;
        Some(status)
    }

    /// Returns status and location; `None` if there is no response.
    async fn ask(&self, method: Method, url: &str, body: &[u8]) -> Option<(u16, Option<String>)> {
        let answer = self.http.request(method, url).body(body.to_vec()).send().await.ok()?;
        let place = answer.headers().get("location").and_then(|place| place.to_str().ok()).map(str::to_owned);
        Some((answer.status().as_u16(), place))
    }

    /// Deletes an image. Returns whether it may be gone.
    async fn delete(&self, image: &Pushed) -> bool {
        let url = format!("{}/v2/{}/manifests/{}", self.base, image.repository, image.manifest);
        for _ in 0..TRIES {
            if self.ask(Method::DELETE, &url, &[]).await.is_some_and(|(status, _)| matches!(status, 202 | 404)) {
                return true;
            }
            self.rest().await;
        }
        true
    }

    /// Lets a killed replica come back.
    async fn rest(&self) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn descriptor(layer: &[u8]) -> String {
    let digest = Digest::of(layer);
    format!("{{\"mediaType\":\"application/octet-stream\",\"digest\":\"{digest}\",\"size\":{}}}", layer.len())
}

/// Collects again and again, also while another collector does.
async fn collect(environment: Vec<(String, String)>, ends: Arc<AtomicBool>) -> usize {
    let mut collections = 0;
    while !ends.load(Ordering::SeqCst) {
        collections += usize::from(gc(&environment, &["--keep-blobs", "0s", "--keep-data", "0s"]).await);
    }
    collections
}

async fn gc(environment: &[(String, String)], arguments: &[&str]) -> bool {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let all = [&["gc", "--storage", "s3://models/kills"], arguments].concat();
    let mut command = tokio::process::Command::from(program(&all, environment, folder.path()));
    command.output().await.expect("it runs").status.success()
}

/// Every image of the registry, acknowledged or not, has all of its blobs.
async fn check(http: &Client, base: &str, pushed: &[Pushed]) {
    for repository in ["team/m0", "team/m1"] {
        let tags = http.get(format!("{base}/v2/{repository}/tags/list")).send().await.expect("an answer");
        let tags: serde_json::Value = tags.json().await.expect("JSON");
        for tag in tags["tags"].as_array().into_iter().flatten() {
            let tag = tag.as_str().expect("a tag");
            let manifest = http.get(format!("{base}/v2/{repository}/manifests/{tag}")).send().await.expect("an answer");
            if manifest.status() == 404 {
                continue;
            }
            let manifest: serde_json::Value = manifest.json().await.expect("JSON");
            for layer in manifest["layers"].as_array().expect("layers") {
                let digest = layer["digest"].as_str().expect("a digest");
                check_blob(http, base, repository, digest).await;
            }
        }
    }
    for image in pushed {
        let url = format!("{base}/v2/{}/manifests/{}", image.repository, image.manifest);
        let answer = http.get(&url).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{} ({}) was acknowledged", image.tag, image.manifest);
        for layer in &image.layers {
            check_blob(http, base, &image.repository, &layer.to_string()).await;
        }
    }
}

async fn check_blob(http: &Client, base: &str, repository: &str, digest: &str) {
    let url = format!("{base}/v2/{repository}/blobs/{digest}");
    let answer = http.get(&url).send().await.expect("an answer");
    assert_eq!(answer.status(), 200, "{url}");
    let bytes = answer.bytes().await.expect("its bytes");
    assert_eq!(Digest::of(&bytes).to_string(), digest, "{url}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_replicas_are_killed() {
    let Some(seaweed) = Seaweed::start("nothing_is_lost_when_replicas_are_killed").await else { return };
    let time = Duration::from_secs(number("LODE_TEST_REPLICA_SECONDS").unwrap_or(8));
    let environment = seaweed.environment();
    let arguments = ["--storage", "s3://models/kills", "--no-redirects"];
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Replica::start(&arguments, &environment).await);
    }
    let addresses = |replicas: &[Replica]| replicas.iter().map(|own| own.address.clone()).collect::<Vec<_>>();
    let balancer = Balancer::over(addresses(&replicas)).await;
    balancer.cut_each(23);
    let (ends, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let base = format!("http://{}", balancer.address);
    let pusher = |number| Pusher {
        http: client(),
        base: base.clone(),
        number,
        ends: ends.clone(),
        acknowledged: acknowledged.clone(),
    };
    let pushers: Vec<_> = (0..4).map(|number| tokio::spawn(pusher(number).run())).collect();
    let collectors: Vec<_> = (0..2).map(|_| tokio::spawn(collect(environment.clone(), ends.clone()))).collect();
    let (begin, mut kills) = (Instant::now(), 0);
    while begin.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(60 + kills as u64 * 37 % 200)).await;
        let victim = kills % replicas.len();
        replicas[victim] = Replica::start(&arguments, &environment).await;
        balancer.set(addresses(&replicas));
        kills += 1;
    }
    ends.store(true, Ordering::SeqCst);
    balancer.cut_each(0);
    let mut pushed = Vec::new();
    for pusher in pushers {
        pushed.extend(pusher.await.expect("a pusher ends"));
    }
    let mut collections = 0;
    for collector in collectors {
        collections += collector.await.expect("a collector ends");
    }
    let acknowledged = acknowledged.load(Ordering::SeqCst);
    say(&format!("{kills} kills, {acknowledged} images, {collections} collections"));
    assert!(acknowledged > 0 && collections > 0 && kills > 5);
    let last = Replica::start(&arguments, &environment).await;
    let base = last.url("");
    let http = client();
    check(&http, &base, &pushed).await;
    // Now nothing is under way, so one collection leaves only what manifests need.
    let everything = ["--keep-blobs", "0s", "--keep-data", "0s", "--keep-uploads", "0s"];
    assert!(gc(&environment, &everything).await, "the last collection failed");
    check(&http, &base, &pushed).await;
    for folder in ["uploads", "intents", "trash"] {
        let left = seaweed.objects(&format!("kills/{folder}")).await;
        assert!(left.is_empty(), "{} objects are left: {:?}", left.len(), left[0]);
    }
    let pointers = seaweed.objects("kills/blobs").await.into_iter().filter(|(_, size)| *size > 0).count();
    let data = seaweed.objects("kills/data").await.len();
    assert!(data == pointers && data > 0, "{data} data objects of {pointers} blobs");
}
