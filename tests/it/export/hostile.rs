//! Exports of damaged models, interrupted exports, and hostile names.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use content::Digest;
use serde_json::{Value, json};

use super::{digests, hidden, text};
use crate::maintenance::{done, fails, run};
use crate::server::{LODE, Server};
use crate::stored::{blob, created};
use crate::support::{entries, list, read, tiny_model};

/// Returns the path of a blob.
fn blob_path(home: &Path, digest: &str) -> PathBuf {
    let hex = digest.strip_prefix("sha256:").expect("a digest of this store");
    home.join("blobs/sha256").join(&hex[..2]).join(hex)
}

/// Replaces the content of a blob's file.
fn replace(path: &Path, bytes: &[u8]) {
    std::fs::remove_file(path).expect("removal");
    std::fs::write(path, bytes).expect("damage");
}

#[tokio::test]
async fn damage_is_named_and_nothing_is_left() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let to = place.path().join("out");
    let layers = created(&server.home(), "m").json["layers"].clone();
    let of_type = |kind: &str| {
        let found = list(&layers).iter().find(|layer| layer["mediaType"].as_str().is_some_and(|t| t.ends_with(kind)));
        found.expect("a layer")["digest"].as_str().expect("a digest").to_owned()
    };
    // The second round runs after a successful export has recorded the digests of the files.
    for known in [false, true] {
        for digest in [of_type(".tensor"), of_type(".json"), of_type(".header.v1")] {
            let path = blob_path(&server.home(), &digest);
            let good = read(&path);
            let mut bad = good.clone();
            let last = bad.len() - 1;
            bad[last] ^= 1;
            replace(&path, &bad);
            let said = run(&server, &["export", "m", "--to", text(&to)]);
            let told = said.err.contains(&digest) && said.err.contains("lode repair");
            // A header with a flipped bit may be unreadable; the export is then refused before it
            // begins.
            assert!(!said.success && told, "{known} {digest}: {}{}", said.out, said.err);
            assert_eq!(entries(place.path()), Vec::<PathBuf>::new(), "something is left");
            replace(&path, &bad[..last]);
            fails(&server, &["export", "m", "--to", text(&to)], "lode repair");
            replace(&path, &good);
        }
        if !known {
            done(&server, &["export", "m", "--to", text(&to)]);
            std::fs::remove_dir_all(&to).expect("removal");
        }
    }
}

/// Makes a model whose origin document and manifest are manipulated.
async fn forged(server: &Server, change: impl Fn(&mut Value, &mut Value)) -> String {
    let home = server.home();
    let stored = created(&home, "m");
    let mut manifest = stored.json.clone();
    let layers = manifest["layers"].as_array_mut().expect("layers");
    let at = layers.iter().position(|layer| layer["mediaType"].as_str().is_some_and(|t| t.contains("origin")));
    let at = at.expect("an origin");
    let raw = blob(&home, layers[at]["digest"].as_str().expect("a digest"));
    let mut origin: Value = serde_json::from_slice(&raw).expect("JSON");
    change(&mut origin, &mut manifest);
    let put = async |bytes: Vec<u8>| {
        let digest = Digest::of(&bytes).to_string();
        let url = server.url(&format!("/v2/library/forged/blobs/uploads/?digest={digest}"));
        let answer = server.http.post(url).header("Content-Type", "application/octet-stream").body(bytes).send().await;
        assert_eq!(answer.expect("an answer").status().as_u16(), 201);
        digest
    };
    for layer in manifest["layers"].as_array().expect("layers").clone().iter().chain([&manifest["config"].clone()]) {
        put(blob(&home, layer["digest"].as_str().expect("a digest"))).await;
    }
    let raw = serde_json::to_vec(&origin).expect("JSON");
    manifest["layers"][at]["size"] = json!(raw.len());
    manifest["layers"][at]["digest"] = json!(put(raw).await);
    let url = server.url("/v2/library/forged/manifests/latest");
    let body = serde_json::to_vec(&manifest).expect("JSON");
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let answer = server.http.put(url).header("Content-Type", kind).body(body).send().await.expect("an answer");
    let status = answer.status().as_u16();
    assert_eq!(status, 201, "{}", answer.text().await.unwrap_or_default());
    let models = server.http.get(server.url("/api/tags")).send().await.expect("an answer").text().await.expect("text");
    let models: Value = serde_json::from_str(&models).expect("JSON");
    let names = list(&models["models"]).iter().filter_map(|model| model["name"].as_str());
    names.into_iter().find(|name| name.contains("forged")).expect("the forged model is listed").to_owned()
}

/// Renames the side file `config.json`.
fn renamed(manifest: &mut Value, to: &str) {
    let layers = manifest["layers"].as_array_mut().expect("layers");
    let layer = layers.iter_mut().find(|layer| layer["name"] == "config.json").expect("a config");
    layer["name"] = json!(to);
    layer["annotations"]["org.opencontainers.image.title"] = json!(to);
}

/// A manipulation of an origin document.
type Change = fn(&mut Value);

#[tokio::test]
async fn names_of_others_lead_nowhere() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let to = place.path().join("deep/out");
    std::fs::create_dir_all(&to).expect("a folder");
    for name in ["../escaped", "/tmp/lode-escaped", "a/../../escaped", "a\\b", "a\u{1b}[2J", "tokenizer.json"] {
        let model = forged(&server, |_, manifest| renamed(manifest, name)).await;
        let said = run(&server, &["export", &model, "--to", text(&to)]);
        assert!(!said.success, "{name:?}: {}{}", said.out, said.err);
        assert!(!said.err.contains('\u{1b}'), "the terminal is told what to do");
    }
    // Impossible sizes, and overlapping offsets.
    let hostile: [(Change, &str); 4] = [
        (|file| file["size"] = json!(u64::MAX), "in no layer"),
        (|file| file["size"] = json!(1u64 << 60), "in no layer"),
        (|file| file["tensors"][0]["offset"] = json!(1), "do not fit"),
        (|file| file["tensors"][0]["name"] = json!("nobody"), "nobody"),
    ];
    for (change, says) in hostile {
        let model = forged(&server, |origin, _| change(&mut origin["files"][0])).await;
        fails(&server, &["export", &model, "--to", text(&to)], says);
    }
    assert_eq!(entries(&to), Vec::<PathBuf>::new());
    assert_eq!(entries(&place.path().join("deep")), [to]);
    assert_eq!(entries(place.path()).len(), 1);
    assert!(std::fs::symlink_metadata("/tmp/lode-escaped").is_err(), "a file was written outside");
}

#[tokio::test]
async fn links_are_not_followed() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    let model = forged(&server, |_, manifest| renamed(manifest, "sub/config.json")).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let (to, elsewhere) = (place.path().join("out"), place.path().join("elsewhere"));
    for folder in [&to, &elsewhere] {
        std::fs::create_dir(folder).expect("a folder");
    }
    symlink(&elsewhere, to.join("sub")).expect("a link");
    fails(&server, &["export", &model, "--to", text(&to), "--force"], "links are not followed");
    assert_eq!(digests(&to).len() + digests(&elsewhere).len(), 0);
    std::fs::remove_file(to.join("sub")).expect("removal");

    // With `--force`, a link in place of a file is replaced; its target stays unchanged.
    let victim = elsewhere.join("victim");
    std::fs::write(&victim, "precious").expect("a file");
    symlink(&victim, to.join("tokenizer.json")).expect("a link");
    fails(&server, &["export", "m", "--to", text(&to)], "--force");
    done(&server, &["export", "m", "--to", text(&to), "--force"]);
    assert_eq!(read(&victim), b"precious");
    assert!(!to.join("tokenizer.json").is_symlink());
    assert_eq!(digests(&to), digests(&tiny_model()));
    symlink(place.path().join("nothing"), place.path().join("dangling")).expect("a link");
    fails(&server, &["export", "m", "--to", text(&place.path().join("dangling"))], "leads nowhere");
}

/// Returns a model whose export takes a while: 1 GiB of zeros, which the store has as one blob.
fn large_model() -> tempfile::TempDir {
    const SIZE: u64 = 1 << 30;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let header = format!(r#"{{"zeros":{{"dtype":"U8","shape":[{SIZE}],"data_offsets":[0,{SIZE}]}}}}"#);
    let mut file = std::fs::File::create(folder.path().join("model.safetensors")).expect("a file");
    std::io::Write::write_all(&mut file, &(header.len() as u64).to_le_bytes()).expect("a length");
    std::io::Write::write_all(&mut file, header.as_bytes()).expect("a header");
    file.set_len(8 + header.len() as u64 + SIZE).expect("a hole");
    folder
}

#[tokio::test]
async fn an_interrupt_leaves_nothing() {
    let mut server = Server::start(&[]).await;
    server.create("large", large_model().path()).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let to = place.path().join("out");
    let begin = |server: &Server| {
        let mut command = Command::new(&*LODE);
        command.args(["export", "large", "--to", text(&to)]).env("LODE_HOST", &server.address);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let begun = Instant::now();
        // Waits until the file exists: the export is in progress.
        while !hidden(place.path()).iter().any(|folder| folder.join("model.safetensors").exists()) {
            assert!(begun.elapsed() < Duration::from_secs(30), "nothing was written");
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    };
    let child = begin(&server);
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(entries(place.path()), Vec::<PathBuf>::new());

    // A killed export cannot clean up. Its remains are hidden, and do not block another export.
    let mut child = begin(&server);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(!to.exists());
    for folder in hidden(place.path()) {
        std::fs::remove_dir_all(folder).expect("removal");
    }

    // The daemon is killed.
    let child = begin(&server);
    server.kill();
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("broke off"), "{said}");
    assert_eq!(entries(place.path()), Vec::<PathBuf>::new());
}
