//! Third-party registries and clients: Debian's docker-registry, skopeo, oras.

mod foreign;
pub(crate) mod hub;
mod keys;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use content::Digest;
use serde_json::Value;

use crate::gateway::Gateway;
use crate::peers::{DEFAULT_HOST, assert_same, password};
use crate::server::{Server, free_port};
use crate::stored::{self, Stored};
use crate::support::{entries, fixtures, list, models, name, read, root, say, skip, tiny_model};

const PROGRAM: &str = "/usr/bin/docker-registry";

/// The user `me` with the password `secret`.
const USERS: &str = "me:$2b$10$abcdefghijklmnopqrstuuqflPDzB6gcMhKa1rZqKiun2YGL5sa2u\n";

/// A docker-registry with its own folder.
pub(crate) struct DockerRegistry {
    pub(crate) address: String,
    child: Child,
    _folder: tempfile::TempDir,
}

impl DockerRegistry {
    /// Starts a registry, or reports the test as skipped if the program is missing.
    pub(crate) async fn start(test: &str, users: Option<&str>) -> Option<Self> {
        Self::with(test, |folder| {
            let Some(users) = users else { return String::new() };
            std::fs::write(folder.join("users"), users).expect("a file of users");
            format!("auth: {{htpasswd: {{realm: test, path: {}/users}}}}\n", folder.display())
        })
        .await
    }

    /// Starts a registry with additional configuration.
    async fn with(test: &str, more: impl FnOnce(&Path) -> String) -> Option<Self> {
        if !Path::new(PROGRAM).is_file() {
            skip(test, "there is no /usr/bin/docker-registry; scripts/test installs it");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = format!("127.0.0.1:{}", free_port());
        let path = folder.path().display();
        let more = more(folder.path());
        let config = format!(
            "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {path}/data}}}}\n\
             http: {{addr: '{address}'}}\n{more}"
        );
        std::fs::write(folder.path().join("config.yml"), config).expect("a configuration");
        let mut command = Command::new(PROGRAM);
        command.arg("serve").arg(folder.path().join("config.yml"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let registry = Self { address, child: child.expect("docker-registry starts"), _folder: folder };
        registry.wait().await;
        Some(registry)
    }

    async fn wait(&self) {
        let http = crate::server::http().build().expect("a client");
        let begin = Instant::now();
        while http.get(format!("http://{}/v2/", self.address)).send().await.is_err() {
            assert!(begin.elapsed() < Duration::from_mins(1), "docker-registry does not answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program. Returns its output, or its error messages if it failed.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn path(folder: &Path) -> &str {
    folder.to_str().expect("a plain path")
}

/// Copies an artifact into an OCI layout with skopeo, and compares the manifest and all blobs.
/// `user` is a user name and a password.
fn check_skopeo(test: &str, artifact: &str, user: Option<[&str; 2]>, manifest: &Stored) {
    if run("skopeo", &["--version"]).is_err() {
        return skip(test, "there is no skopeo; scripts/test installs it");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let target = format!("oci:{}:m", path(folder.path()));
    let user = user.map(|[user, password]| format!("--src-creds={user}:{password}"));
    let source = format!("docker://{artifact}");
    let mut arguments = vec!["copy", "-q", "--src-tls-verify=false"];
    arguments.extend(user.as_deref());
    let copied = run("skopeo", &[&arguments[..], &[&source, &target]].concat());
    copied.unwrap_or_else(|e| panic!("skopeo copy {artifact}: {e}"));
    let mut expected: BTreeSet<String> = manifest.blobs().into_keys().collect();
    expected.insert(manifest.digest.clone());
    let blobs = entries(&folder.path().join("blobs/sha256"));
    let copied: BTreeSet<String> = blobs.iter().map(|path| Digest::of(&read(path)).to_string()).collect();
    assert_eq!(copied, expected, "{artifact}");
}

/// Fetches an artifact into a folder with oras, and checks that each layer has its title as file
/// name.
fn check_oras(test: &str, artifact: &str, user: Option<[&str; 2]>, manifest: &Stored) {
    let Ok(python) = std::env::var("LODE_TEST_PYTHON") else {
        return skip(test, "LODE_TEST_PYTHON names no Python with the package `oras`; scripts/test makes one");
    };
    if run(&python, &["-c", "import oras.client"]).is_err() {
        return skip(test, "the Python of LODE_TEST_PYTHON has no package `oras`; scripts/test installs it");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = root().join("tests/clients/oras_pull.py");
    let mut arguments = vec![path(&script), artifact, path(folder.path())];
    arguments.extend(user.iter().flatten());
    let pulled = run(&python, &arguments);
    pulled.unwrap_or_else(|e| panic!("oras pull {artifact}: {e}"));
    let layers = list(&manifest.json["layers"]);
    let titled = |layer: &Value| Some(layer["annotations"]["org.opencontainers.image.title"].as_str()?.to_owned());
    let titles: BTreeSet<String> = layers.iter().filter_map(titled).collect();
    assert!(titles.contains("model.norm.weight"), "{titles:?}");
    for title in titles {
        let digest = Digest::of(&read(&folder.path().join(&title))).to_string();
        let is = |layer: &&Value| titled(layer).as_ref() == Some(&title) && layer["digest"] == digest.as_str();
        assert!(layers.iter().any(|layer| is(&layer)), "oras has other bytes as {title}");
    }
}

/// Returns the full name of a model that was created as `name`.
fn local(name: &str) -> String {
    format!("{DEFAULT_HOST}/library/{name}:latest")
}

/// Pushes a model to the registry, and fetches it with every available client.
async fn check(test: &str, registry: &DockerRegistry, source: &Server, model: &str) {
    let artifact = format!("{}/models/{model}:1", registry.address);
    source.push(model, &artifact).await;
    let manifest = stored::created(&source.home(), model);
    check_skopeo(test, &artifact, None, &manifest);
    let target = Server::start(&[]).await;
    target.pull(&artifact).await;
    assert_same((source, &local(model)), (&target, &artifact)).await;
}

#[tokio::test]
async fn the_tiny_model_goes_and_comes_back() {
    let test = "real_registry::the_tiny_model_goes_and_comes_back";
    let Some(registry) = DockerRegistry::start(test, None).await else { return };
    let source = Server::start(&[]).await;
    source.create("tiny", &tiny_model()).await;
    check(test, &registry, &source, "tiny").await;
    check_oras(test, &format!("{}/models/tiny:1", registry.address), None, &stored::created(&source.home(), "tiny"));
}

#[tokio::test]
async fn clients_of_others_pull_from_lode() {
    let test = "real_registry::clients_of_others_pull_from_lode";
    let source = Server::start(&[]).await;
    source.create("tiny", &tiny_model()).await;
    let artifact = format!("{}/library/tiny:latest", source.address);
    let manifest = stored::created(&source.home(), "tiny");
    check_skopeo(test, &artifact, None, &manifest);
    check_oras(test, &artifact, None, &manifest);
}

#[tokio::test]
async fn skopeo_pushes_to_lode() {
    let test = "real_registry::skopeo_pushes_to_lode";
    if run("skopeo", &["--version"]).is_err() {
        return skip(test, "there is no skopeo; scripts/test installs it");
    }
    let source = Server::start(&[]).await;
    source.create("tiny", &tiny_model()).await;
    let target = Server::start(&[]).await;
    let from = format!("docker://{}/library/tiny:latest", source.address);
    let to = format!("docker://{}/library/tiny:latest", target.address);
    let copied = run("skopeo", &["copy", "-q", "--src-tls-verify=false", "--dest-tls-verify=false", &from, &to]);
    copied.unwrap_or_else(|e| panic!("skopeo copy: {e}"));
    assert_same((&source, &local("tiny")), (&target, &local("tiny"))).await;
}

#[tokio::test]
async fn every_model_of_the_fixtures() {
    let test = "real_registry::every_model_of_the_fixtures";
    let Some(folder) = fixtures(test, "hf") else { return };
    let Some(registry) = DockerRegistry::start(test, None).await else { return };
    let mut moved = 0;
    for fixture in entries(&folder).into_iter().filter(|path| path.join("model/config.json").is_file()) {
        let source = Server::start(&[]).await;
        let model = name(&fixture).to_lowercase();
        let create = serde_json::json!({"model": model, "path": fixture.join("model")});
        // Models that Lode cannot import yet are not the subject of this test.
        if source.transfer("/api/create", &create).await.is_err() {
            continue;
        }
        let artifact = format!("{}/models/{model}:1", registry.address);
        source.push(&model, &artifact).await;
        let target = Server::start(&[]).await;
        target.pull(&artifact).await;
        let (repository, tag) = artifact.rsplit_once(':').expect("a whole name");
        let there = stored::created(&source.home(), &model);
        let here = stored::manifest(&target.home(), repository, tag);
        assert_eq!((&here.digest, &here.raw), (&there.digest, &there.raw), "{model}");
        let missing = here.missing(&stored::blobs(&target.home()));
        assert!(missing.is_empty(), "{model}: {missing:?}");
        // Some importable models cannot be run yet.
        assert_eq!(source.says_perhaps(&model).await, target.says_perhaps(&artifact).await, "{model}");
        moved += 1;
    }
    say(&format!("{moved} models of the fixtures went through docker-registry"));
    assert!(moved > 3, "only {moved} models of the fixtures could be imported");
}

#[tokio::test]
async fn a_real_model() {
    let test = "real_registry::a_real_model";
    let Some(model) = models().map(|folder| folder.join("smollm2-135m-q4_1.gguf")).filter(|path| path.is_file()) else {
        return skip(test, "the model is not there; `scripts/fetch-model smollm2` gets it");
    };
    let Some(registry) = DockerRegistry::start(test, None).await else { return };
    let source = Server::start(&[]).await;
    source.create("smollm2", &model).await;
    check(test, &registry, &source, "smollm2").await;
}

#[tokio::test]
async fn a_password_is_asked_for() {
    let test = "real_registry::a_password_is_asked_for";
    let Some(registry) = DockerRegistry::start(test, Some(USERS)).await else { return };
    let source = Server::prepared(&[], |home| password(home, &registry.address)).await;
    source.create("tiny", &tiny_model()).await;
    let artifact = format!("{}/models/tiny:1", registry.address);
    source.push("tiny", &artifact).await;
    let target = Server::start(&[]).await;
    let refused = target.try_pull(&artifact).await.expect_err("nobody is known there");
    assert!(refused.contains(&format!("lode login {}", registry.address)), "{refused}");
    let login = ["login", &registry.address, "-u", "me", "--password-stdin"];
    let output = target.lode_reading(&login, "secret");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target.pull(&artifact).await;
    assert_same((&source, &local("tiny")), (&target, &artifact)).await;
}

#[tokio::test]
async fn a_second_repository_mounts_what_the_first_has() {
    let test = "real_registry::a_second_repository_mounts_what_the_first_has";
    let Some(registry) = DockerRegistry::start(test, None).await else { return };
    let gateway = Gateway::to(&registry.address);
    let source = Server::start(&[]).await;
    source.create("tiny", &tiny_model()).await;
    source.push("tiny", &format!("{}/models/first:1", gateway.address)).await;
    let blobs = stored::created(&source.home(), "tiny").blobs();
    let (total, largest) = (blobs.values().sum::<u64>(), *blobs.values().max().expect("blobs"));
    // This registry does not support an upload in a single POST. The first small blob, which
    // detects that, is sent twice.
    let uploaded = gateway.uploaded_bytes();
    assert!((total..=total + largest).contains(&uploaded), "{uploaded} bytes for {total}");
    gateway.clear();
    source.push("tiny", &format!("{}/models/second:1", gateway.address)).await;
    assert_eq!(gateway.uploaded_bytes(), 0, "{:?}", gateway.passed());
    let target = Server::start(&[]).await;
    target.pull(&format!("{}/models/second:1", registry.address)).await;
}
