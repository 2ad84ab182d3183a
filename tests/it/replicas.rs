//! `lode registry`: replicas without a store of their own, over `SeaweedFS` and over storages that
//! fail.

mod balancer;
mod copies;
mod kills;
mod logins;
mod rules;
pub(crate) mod seaweed;
pub(crate) mod storage;
mod sync;
mod traces;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use content::Digest;
use reqwest::{Client, Method};

use crate::conformance::official;
use crate::server::{LODE, Server, free_port};
use crate::stored;
use crate::support::tiny_model;
use balancer::Balancer;
use seaweed::Seaweed;
use storage::{Fault, HostileStorage};

/// A replica; it ends with the test.
struct Replica {
    child: Child,
    address: String,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

/// Returns the command line of a registry program with these variables.
fn program(arguments: &[&str], environment: &[(String, String)], folder: &Path) -> Command {
    let mut command = Command::new(&*LODE);
    command
        .arg("registry")
        .args(arguments)
        // A replica must not need a store.
        .env("LODE_HOME", folder.join("none"))
        .env("LODE_LOG", "debug,hyper=info,hyper_util=info,reqwest=info")
        .envs(environment.iter().cloned())
        .stdin(Stdio::null());
    command
}

impl Replica {
    /// Starts a replica and waits until it serves.
    async fn start(arguments: &[&str], environment: &[(String, String)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = format!("127.0.0.1:{}", free_port());
        let log = folder.path().join("log");
        let file = std::fs::File::create(&log).expect("a log");
        let mut command = program(arguments, environment, folder.path());
        let child = command.env("LODE_HOST", &address).stdout(Stdio::null()).stderr(file).spawn();
        let mut replica = Self { child: child.expect("it starts"), address, log, _folder: folder };
        replica.wait().await;
        replica
    }

    async fn wait(&mut self) {
        let http = client();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_mins(1) {
            if http.get(self.url("/healthz")).send().await.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "the replica ended at once: {}", self.text());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the replica does not answer: {}", self.text());
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that follows no redirects. Each request has its own connection, so a balancer sends it
/// to the next replica.
fn client() -> Client {
    let builder = crate::server::http().redirect(reqwest::redirect::Policy::none()).pool_max_idle_per_host(0);
    builder.build().expect("a client")
}

/// Runs `lode registry` until it ends, and returns its error messages.
async fn fails(arguments: &[&str], environment: &[(String, String)]) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = tokio::process::Command::from(program(arguments, environment, folder.path()));
    let ended = command.env("LODE_HOST", format!("127.0.0.1:{}", free_port())).output().await.expect("it runs");
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{arguments:?}: {text}");
    text
}

/// Uploads a blob in one request. Returns the status and the body of the response.
async fn upload(http: &Client, base: &str, repository: &str, bytes: &[u8]) -> (u16, String) {
    let digest = Digest::of(bytes);
    let url = format!("{base}/v2/{repository}/blobs/uploads/?digest={digest}");
    let answer = http.post(url).body(bytes.to_vec()).send().await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("a body"))
}

async fn status(http: &Client, method: Method, url: String) -> u16 {
    http.request(method, url).send().await.expect("an answer").status().as_u16()
}

/// Runs the tests of `conformance` against a registry, in a process of their own, and checks that
/// none fails.
async fn passes_conformance(base: &str) {
    let program = std::env::current_exe().expect("this program");
    let mut command = tokio::process::Command::new(program);
    command.args(["conformance::", "--skip", "peers"]).env("LODE_TEST_REGISTRY", base).env_remove("LODE_TEST_SKIPPED");
    let ended = command.stdin(Stdio::null()).output().await.expect("the tests run");
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{text}");
    let passed =
        text.rsplit_once("test result: ok. ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u32>().ok());
    assert!(passed.is_some_and(|passed| passed > 20), "{text}");
}

#[tokio::test]
async fn the_conformance_tests_pass_in_memory() {
    let replica = Replica::start(&["--storage", "memory://"], &[]).await;
    passes_conformance(&format!("http://{}/", replica.address)).await;
}

/// Each request reaches the next replica, so an upload never stays at one of them.
#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_tests_pass_over_two_replicas() {
    let Some(seaweed) = Seaweed::start("the_conformance_tests_pass_over_two_replicas").await else { return };
    let arguments = ["--storage", "s3://models/conformance", "--no-redirects"];
    let replicas = [
        Replica::start(&arguments, &seaweed.environment()).await,
        Replica::start(&arguments, &seaweed.environment()).await,
    ];
    let balancer = Balancer::over(replicas.iter().map(|replica| replica.address.clone()).collect()).await;
    passes_conformance(&format!("http://{}/", balancer.address)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_programme_passes_over_two_replicas() {
    const TEST: &str = "replicas::the_official_programme_passes_over_two_replicas";
    let Some(program) = official::program(TEST) else { return };
    let Some(seaweed) = Seaweed::start(TEST).await else { return };
    let mut environment = seaweed.environment();
    environment.push(("LODE_REGISTRY_SPARSE".to_owned(), "1".to_owned()));
    let arguments = ["--storage", "s3://models/official"];
    let replicas = [Replica::start(&arguments, &environment).await, Replica::start(&arguments, &environment).await];
    let balancer = Balancer::over(replicas.iter().map(|replica| replica.address.clone()).collect()).await;
    official::passes(program, &balancer.address).await;
}

/// A daemon pushes a model through one replica, and another daemon pulls it through the other one,
/// from the storage itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_travels_through_replicas() {
    let Some(seaweed) = Seaweed::start("a_model_travels_through_replicas").await else { return };
    let arguments = ["--storage", "s3://models/travel"];
    let first = Replica::start(&arguments, &seaweed.environment()).await;
    let second = Replica::start(&arguments, &seaweed.environment()).await;
    let sender = Server::start(&[]).await;
    sender.create("mine", &tiny_model()).await;
    let done = sender.lode(&["push", "mine", &format!("{}/team/mine:1", first.address)]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let receiver = Server::start(&[]).await;
    let name = format!("{}/team/mine:1", second.address);
    let done = receiver.lode(&["pull", &name]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let sent = stored::blobs(&sender.home());
    let received = stored::blobs(&receiver.home());
    assert!(!received.is_empty() && received.keys().all(|blob| sent.contains_key(blob)), "{:?}", received.keys());
    let again = sender.lode(&["push", "mine", &format!("{}/team/mine:2", second.address)]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    let tags = client().get(first.url("/v2/team/mine/tags/list")).send().await.expect("an answer");
    assert_eq!(tags.text().await.expect("a body"), r#"{"name":"team/mine","tags":["1","2"]}"#);
}

/// Large blobs are read from the storage, unless the client or the operator does not want that.
#[tokio::test(flavor = "multi_thread")]
async fn clients_are_sent_to_the_storage() {
    let Some(seaweed) = Seaweed::start("clients_are_sent_to_the_storage").await else { return };
    let arguments = ["--storage", "s3://models/links", "--no-redirect-for", "stubborn/"];
    let replica = Replica::start(&arguments, &seaweed.environment()).await;
    let http = client();
    let large = vec![7; 3 << 20];
    assert_eq!(upload(&http, &replica.url(""), "a", &large).await.0, 201);
    assert_eq!(upload(&http, &replica.url(""), "a", b"small").await.0, 201);
    let blob = replica.url(&format!("/v2/a/blobs/{}", Digest::of(&large)));
    let sent = http.get(&blob).header("Range", "bytes=5-9").send().await.expect("an answer");
    assert_eq!(sent.status(), 307);
    let link = sent.headers()["location"].to_str().expect("a link").to_owned();
    let part = http.get(&link).header("Range", "bytes=5-9").send().await.expect("an answer");
    assert_eq!((part.status().as_u16(), part.bytes().await.expect("bytes").len()), (206, 5));
    let whole = http.get(&link).send().await.expect("an answer").bytes().await.expect("bytes");
    assert!(whole == large);
    // A link is for reading only.
    assert_ne!(status(&http, Method::DELETE, link).await / 100, 2);
    let direct = http.get(&blob).header("User-Agent", "stubborn/1").send().await.expect("an answer");
    assert_eq!(direct.status(), 200);
    assert!(direct.bytes().await.expect("bytes") == large);
    let small =
        http.get(replica.url(&format!("/v2/a/blobs/{}", Digest::of(b"small")))).send().await.expect("an answer");
    assert_eq!((small.status().as_u16(), small.text().await.expect("a body")), (200, "small".to_owned()));
    assert_eq!(status(&http, Method::HEAD, blob).await, 200);
}

#[tokio::test]
async fn a_storage_without_conditions_is_refused() {
    let storage = HostileStorage::start().await;
    storage.set(Fault::IgnoresConditions);
    let error = fails(&["--storage", "s3://models/x"], &storage.environment()).await;
    assert!(error.contains("s3://models/x") && error.contains("If-None-Match"), "{error}");
}

#[tokio::test]
async fn expired_credentials_are_reported() {
    let storage = HostileStorage::start().await;
    storage.set(Fault::Expired);
    let error = fails(&["--storage", "s3://models/x"], &storage.environment()).await;
    assert!(error.contains("ExpiredToken"), "{error}");
    storage.set(Fault::None);
    let replica = Replica::start(&["--storage", "s3://models/x"], &storage.environment()).await;
    let http = client();
    assert_eq!(status(&http, Method::GET, replica.url("/readyz")).await, 200);
    storage.set(Fault::Expired);
    let (code, body) = upload(&http, &replica.url(""), "a", b"bytes").await;
    assert!(code == 502 && body.contains("refuses the credentials") && !body.contains("127.0.0.1"), "{code} {body}");
    assert!(replica.text().contains("ExpiredToken"), "{}", replica.text());
    let ready = http.get(replica.url("/readyz")).send().await.expect("an answer");
    assert_eq!(ready.status(), 503);
    storage.set(Fault::None);
    assert_eq!(upload(&http, &replica.url(""), "a", b"bytes").await.0, 201);
}

#[tokio::test]
async fn a_storm_of_503s_passes() {
    let storage = HostileStorage::start().await;
    let replica = Replica::start(&["--storage", "s3://models/x"], &storage.environment()).await;
    storage.set(Fault::Unavailable { left: 6 });
    let http = client();
    assert_eq!(upload(&http, &replica.url(""), "a", b"bytes").await, (201, String::new()));
    let blob = replica.url(&format!("/v2/a/blobs/{}", Digest::of(b"bytes")));
    storage.set(Fault::Unavailable { left: 3 });
    assert_eq!(http.get(blob).send().await.expect("an answer").text().await.expect("a body"), "bytes");
}

#[tokio::test]
async fn a_slow_storage_only_takes_longer() {
    let storage = HostileStorage::start().await;
    let replica = Replica::start(&["--storage", "s3://models/x"], &storage.environment()).await;
    storage.set(Fault::Slow(Duration::from_secs(1)));
    let http = client();
    assert_eq!(upload(&http, &replica.url(""), "a", b"bytes").await, (201, String::new()));
    let blob = replica.url(&format!("/v2/a/blobs/{}", Digest::of(b"bytes")));
    assert_eq!(http.get(blob).send().await.expect("an answer").text().await.expect("a body"), "bytes");
}

/// Bytes that change on their way to the storage are refused there, and the client is told.
#[tokio::test]
async fn a_wrong_checksum_is_an_error() {
    let storage = HostileStorage::start().await;
    let replica = Replica::start(&["--storage", "s3://models/x"], &storage.environment()).await;
    storage.set(Fault::Corrupts);
    let http = client();
    let (code, body) = upload(&http, &replica.url(""), "a", b"bytes").await;
    assert!(code == 503 && body.contains("the storage fails"), "{code} {body}");
    assert!(replica.text().contains("BadDigest"), "{}", replica.text());
    storage.set(Fault::None);
    let blob = replica.url(&format!("/v2/a/blobs/{}", Digest::of(b"bytes")));
    assert_eq!(status(&http, Method::GET, blob.clone()).await, 404);
    assert_eq!(upload(&http, &replica.url(""), "a", b"bytes").await.0, 201);
    assert_eq!(status(&http, Method::GET, blob).await, 200);
}

#[tokio::test]
async fn wrong_arguments_are_explained() {
    for (arguments, reason) in [
        (&["--storage", "models"][..], "s3://BUCKET/PREFIX"),
        (&[], "LODE_REGISTRY_STORAGE"),
        (&["gc", "--storage", "memory://"], "nothing to collect"),
        (&["retain", "--storage", "memory://"], "nothing to remove"),
        (&["retain", "--storage", "s3://models/x"], "LODE_REGISTRY_RULES"),
        (&["sync", "--storage", "s3://models/x"], "LODE_REGISTRY_RULES"),
        (&["--storage", "memory://", "--rules", "/none.toml"], "/none.toml"),
        (&["--storage", "memory://", "--collect-every", "0s"], "more than no time"),
        (&["--storage", "memory://", "--no-redirects", "--no-redirect-for", "x"], "cannot be used with"),
    ] {
        let error = fails(arguments, &[]).await;
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
}

/// Other machines could otherwise delete everything.
#[tokio::test]
async fn an_open_registry_for_all_machines_must_be_chosen() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = program(&["--storage", "memory://"], &[], folder.path());
    let ended = command.env("LODE_HOST", format!("0.0.0.0:{}", free_port())).output().expect("it runs");
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && error.contains("LODE_REGISTRY_MODE"), "{error}");
    let replica = Replica::start(&["--storage", "memory://"], &[]).await;
    let page = client().post(replica.url("/v2/a/blobs/uploads/")).header("Origin", "https://example.com");
    assert_eq!(page.send().await.expect("an answer").status(), 403);
}
