//! Third-party clients: skopeo and oras.

use std::path::Path;
use std::process::{Command, Output};

use content::Algorithm::Sha256;
use content::Digest;
use serde_json::json;

use super::client::Registry;
use super::documents::{Document, EXAMPLE, IMAGE, INDEX, Parts, Set};
use crate::support::{json as read_json, read, root, say, skip};

/// The number of layers of the artifact that oras pushes; `scripts/bench` uses more.
const LAYERS: usize = 60;

fn run(command: &mut Command) -> Output {
    // The developer's logins and proxies must not influence these tests.
    for name in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "REGISTRY_AUTH_FILE"] {
        command.env_remove(name);
    }
    command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// Runs a command that must succeed, and returns its output.
fn succeed(command: &mut Command) -> Vec<u8> {
    let output = run(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    output.stdout
}

/// Whether a client is installed. If not, reports the test as skipped.
fn installed(test: &str, command: &mut Command, hint: &str) -> bool {
    let there = command.output().is_ok_and(|output| output.status.success());
    if !there {
        skip(test, hint);
    }
    there
}

fn has_skopeo(test: &str) -> bool {
    installed(test, Command::new("skopeo").arg("--version"), "skopeo is not installed")
}

/// Writes a set as an OCI layout, with its last document tagged `latest`.
fn write_layout(folder: &Path, set: &Set) {
    let write = |digest: &Digest, bytes: &[u8]| {
        let path = folder.join("blobs").join(digest.algorithm().name()).join(digest.hex());
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, bytes).expect("a blob");
    };
    set.blobs.iter().for_each(|blob| write(&blob.digest, &blob.bytes));
    set.documents.iter().for_each(|document| write(&document.digest, &document.bytes));
    let mut entry = set.documents.last().expect("a document").descriptor();
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": "latest"});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
    std::fs::write(folder.join("index.json"), index.to_string()).expect("an index");
    std::fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("a layout");
}

/// Asserts that a layout has the documents and blobs of a set.
fn check_layout(folder: &Path, set: &Set, last: &Document) {
    let index = read_json(&folder.join("index.json"));
    assert_eq!(index["manifests"][0]["digest"], last.digest.to_string(), "{index}");
    let documents = set.documents.iter().map(|document| (&document.digest, &document.bytes));
    for (digest, bytes) in documents.chain(set.blobs.iter().map(|blob| (&blob.digest, &blob.bytes))) {
        let path = folder.join("blobs").join(digest.algorithm().name()).join(digest.hex());
        assert!(read(&path) == *bytes, "`{}`", path.display());
    }
}

fn copy(arguments: &[&str], from: &str, to: &str) {
    succeed(Command::new("skopeo").args(["--insecure-policy", "copy", "-q"]).args(arguments).args([from, to]));
}

#[tokio::test(flavor = "multi_thread")]
async fn skopeo_copies_in_and_out() {
    const TEST: &str = "conformance::peers::skopeo_copies_in_and_out";
    if !has_skopeo(TEST) {
        return;
    }
    let registry = Registry::start().await;
    let mut image = Set::new(Sha256, "skopeo image");
    image.manifest(&Parts { layers: 5, layer: "application/vnd.example.layer.v1", ..Parts::image() });
    let mut artifact = Set::new(Sha256, "skopeo artifact");
    artifact.manifest(&Parts { layers: 5, ..Parts::artifact(EXAMPLE) });
    let mut index = Set::new(Sha256, "skopeo index");
    index.index_of_two(&Parts { layer: "application/vnd.example.layer.v1", ..Parts::image() });
    for (name, set) in [("image", &image), ("artifact", &artifact), ("index", &index)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        std::fs::create_dir(&source).expect("a folder");
        write_layout(&source, set);
        let place = format!("docker://{}/library/skopeo-{name}:latest", registry.address());
        let all = ["--all", "--preserve-digests", "--dest-tls-verify=false"];
        copy(&all, &format!("oci:{}:latest", source.display()), &place);
        // The second copy finds everything already there.
        copy(&all, &format!("oci:{}:latest", source.display()), &place);
        let all = ["--all", "--preserve-digests", "--src-tls-verify=false"];
        copy(&all, &place, &format!("oci:{}:latest", target.display()));
        let last = set.documents.last().expect("a document");
        check_layout(&target, set, last);
        let inspect = ["--insecure-policy", "inspect", "--raw", "--tls-verify=false", &place];
        assert!(succeed(Command::new("skopeo").args(inspect)) == last.bytes, "{name}");
        // A copy between repositories, which the client makes by mounting blobs.
        let second = format!("docker://{}/library/skopeo-{name}-copy:second", registry.address());
        copy(&["--all", "--preserve-digests", "--src-tls-verify=false", "--dest-tls-verify=false"], &place, &second);
        let path = format!("/v2/library/skopeo-{name}-copy/manifests/second");
        let get = super::data_sets::accepting(registry.ask(reqwest::Method::GET, &path));
        super::client::reply(get).await.is(200).holds(&last.bytes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn skopeo_lists_and_deletes() {
    const TEST: &str = "conformance::peers::skopeo_lists_and_deletes";
    if !has_skopeo(TEST) {
        return;
    }
    let registry = Registry::start().await;
    let repository = "library/skopeo-tags";
    let mut set = Set::new(Sha256, "skopeo tags");
    let image = set.manifest(&Parts::image());
    super::data_sets::push_blobs(&registry, repository, &set).await;
    for tag in ["one", "two", "three"] {
        registry.put(&format!("/v2/{repository}/manifests/{tag}"), IMAGE, &image.bytes).await.is(201);
    }
    let place = format!("docker://{}/{repository}", registry.address());
    let list = ["--insecure-policy", "list-tags", "--tls-verify=false", &place];
    let listed: serde_json::Value = serde_json::from_slice(&succeed(Command::new("skopeo").args(list))).expect("JSON");
    assert_eq!(listed["Tags"], json!(["one", "three", "two"]));
    let one = format!("{place}:one");
    succeed(Command::new("skopeo").args(["--insecure-policy", "delete", "--tls-verify=false", &one]));
    // skopeo deletes the manifest of the tag, and with it all its tags.
    registry.get(&format!("/v2/{repository}/manifests/{}", image.digest)).await.is(404);
    registry.get(&format!("/v2/{repository}/manifests/two")).await.is(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn oras_pushes_and_pulls() {
    const TEST: &str = "conformance::peers::oras_pushes_and_pulls";
    let Some(python) = std::env::var_os("LODE_TEST_PYTHON") else {
        return skip(TEST, "LODE_TEST_PYTHON names no Python with the package `oras`; scripts/test makes one");
    };
    let imports = ["-c", "import oras.client"];
    if !installed(TEST, Command::new(&python).args(imports), "the Python of LODE_TEST_PYTHON has no package `oras`") {
        return;
    }
    let registry = Registry::start().await;
    let script = root().join("tests/clients/oras_client.py");
    let (address, layers) = (registry.address(), LAYERS.to_string());
    let output = succeed(Command::new(&python).arg(script).args([&address, &layers]));
    say(String::from_utf8_lossy(&output).trim_end());
}
