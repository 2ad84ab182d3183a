//! Maintenance of a store with the built program: reports, pins, checks, prunes, saves and loads.

mod archives;
mod damage;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{entries, list, name, read, tiny_model, variant};

/// The output of a command, and whether it succeeded.
pub(crate) struct Said {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) success: bool,
}

/// Runs a command against a daemon.
pub(crate) fn run(server: &Server, arguments: &[&str]) -> Said {
    let output = server.lode(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { out: text(&output.stdout), err: text(&output.stderr), success: output.status.success() }
}

/// Runs a command that must succeed, and returns its standard output.
pub(crate) fn done(server: &Server, arguments: &[&str]) -> String {
    let said = run(server, arguments);
    assert!(said.success, "{arguments:?}: {}{}", said.out, said.err);
    said.out
}

/// Runs a command that must fail with this text in its error.
pub(crate) fn fails(server: &Server, arguments: &[&str], says: &str) {
    let said = run(server, arguments);
    assert!(!said.success, "{arguments:?} succeeded: {}{}", said.out, said.err);
    assert!(said.err.contains(says), "{arguments:?} does not say `{says}`: {}", said.err);
}

/// Runs a command that prints a JSON document.
pub(crate) fn document(server: &Server, arguments: &[&str]) -> Value {
    let out = done(server, &[arguments, &["--format", "json"]].concat());
    serde_json::from_str(&out).expect("JSON")
}

/// Returns the tiny model with one element of its last tensor changed.
pub(super) fn fine_tune() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for path in entries(&tiny_model()) {
        let mut bytes = read(&path);
        if name(&path).ends_with("safetensors") {
            let low = bytes.len() - 2;
            bytes[low] ^= 0x20;
        }
        std::fs::write(folder.path().join(name(&path)), bytes).expect("a copy");
    }
    folder
}

/// Returns the files below a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Returns the manifest digest of a model.
pub(super) fn digest(server: &Server, model: &str) -> String {
    let usage = document(server, &["du", model]);
    usage["models"][0]["digest"].as_str().expect("a digest").to_owned()
}

#[tokio::test]
async fn du_and_diff_tell_what_a_fine_tune_shares() {
    let server = Server::start(&[]).await;
    let tuned = fine_tune();
    server.create("base", &tiny_model()).await;
    server.create("tuned", tuned.path()).await;

    let usage = document(&server, &["du"]);
    let models = list(&usage["models"]);
    assert_eq!(models.len(), 2);
    for model in models {
        let number = |key: &str| model[key].as_u64().expect("a number");
        assert_eq!(number("bytes"), number("unique_bytes") + number("shared_bytes"));
        assert!(number("unique_bytes") > 0 && number("shared_bytes") > number("unique_bytes"), "{model}");
    }
    assert_eq!(usage["unreferenced_bytes"], 0);
    let on_disk: u64 =
        files(&server.home().join("blobs")).iter().map(|path| path.metadata().expect("a file").len()).sum();
    assert_eq!(usage["bytes"], on_disk);
    fails(&server, &["du", "nope"], "not found");
    assert!(done(&server, &["du"]).contains("base:latest"));

    let same = document(&server, &["diff", "base", "base"]);
    assert_eq!((same["tensors"].as_array().map(Vec::len), same["added_bytes"].as_u64()), (Some(0), Some(0)));
    let differ = document(&server, &["diff", "base", "tuned", "--values"]);
    let [tensor] = list(&differ["tensors"]) else { panic!("one tensor was changed: {differ}") };
    let computed = &tensor["values"]["computed"];
    assert!(computed["max"].as_f64().is_some_and(|max| max > 0.0), "{tensor}");
    let (max, rms) = (computed["max"].as_f64(), computed["rms"].as_f64());
    assert!(rms < max && rms > Some(0.0), "one number of many differs: {tensor}");
    assert!(differ["equal_tensors"].as_u64() > Some(5) && differ["added_bytes"].as_u64() > Some(0));
    assert_eq!(tensor["a"], tensor["b"], "type and shape are the same");
    let shown = done(&server, &["diff", "base", "tuned", "--values"]);
    assert!(shown.contains(tensor["name"].as_str().expect("a name")) && shown.contains("RMS"), "{shown}");

    server.ask("/api/create", &json!({"model": "brief", "from": "base", "system": "Be brief.", "stream": false})).await;
    let differ = document(&server, &["diff", "base", "brief"]);
    assert_eq!(list(&differ["tensors"]).len(), 0);
    let layers: Vec<&Value> = list(&differ["layers"]).iter().map(|layer| &layer["name"]).collect();
    assert!(layers.contains(&&json!("system")) && layers.contains(&&json!("config")), "{differ}");
    fails(&server, &["diff", "base", "nope"], "not found");

    // Values of quantized tensors are compared after dequantization: they are close, and closer
    // with more bits.
    let apart = async |quantize: &str| {
        let made = json!({"model": quantize, "from": "base", "quantize": quantize, "stream": false});
        server.ask("/api/create", &made).await;
        let differ = document(&server, &["diff", "base", quantize, "--values"]);
        let rms = |tensor: &Value| tensor["values"]["computed"]["rms"].as_f64().unwrap_or_else(|| panic!("{tensor}"));
        list(&differ["tensors"]).iter().map(rms).sum::<f64>()
    };
    let (fine, coarse) = (apart("int8").await, apart("int4").await);
    assert!(0.0 < fine && fine < coarse / 4.0, "{fine} {coarse}");
}

#[tokio::test]
async fn one_can_go_back_after_an_update() {
    let server = Server::start(&[]).await;
    let variants = [variant(1), variant(2)];
    server.create("m", &tiny_model()).await;
    let first = digest(&server, "m");
    server.create("m", variants[0].path()).await;
    let second = digest(&server, "m");
    assert_ne!(first, second);
    let states = || {
        let history = document(&server, &["history", "m"]);
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let entry = |entry: &Value| (text(&entry["digest"]), text(&entry["state"]));
        list(&history["versions"]).iter().map(entry).collect::<Vec<_>>()
    };
    let entry = |digest: &str, state: &str| (digest.to_owned(), state.to_owned());
    assert_eq!(states(), [entry(&second, "current"), entry(&first, "here")]);

    done(&server, &["rollback", "m"]);
    assert_eq!(digest(&server, "m"), first);
    let request = json!({"model": "m", "prompt": "x", "raw": true, "stream": false, "options": {"num_predict": 2}});
    server.ask("/api/generate", &request).await;
    done(&server, &["rollback", "m"]);
    assert_eq!(digest(&server, "m"), second, "going back twice is going nowhere");

    server.create("m", variants[1].path()).await;
    let third = digest(&server, "m");
    let gone = states().into_iter().filter(|(digest, _)| *digest == first).all(|(_, state)| state == "gone");
    assert!(gone, "only the last version is kept: {:?}", states());
    fails(&server, &["rollback", "m", "--to", &first], "is gone");
    fails(&server, &["rollback", "m", "--to", "xyz"], "no version");
    fails(&server, &["rollback", "nope"], "not found");

    let version_bytes = || document(&server, &["du"])["version_bytes"].as_u64();
    assert!(version_bytes() > Some(0));
    let planned = done(&server, &["prune", "--dry-run"]);
    assert!(planned.contains("m:latest") && planned.contains("earlier version"), "{planned}");
    assert!(version_bytes() > Some(0), "a dry run removes nothing");
    done(&server, &["prune"]);
    assert_eq!(version_bytes(), Some(0));
    assert_eq!(states(), [entry(&third, "current")]);
    fails(&server, &["rollback", "m"], "no earlier version");
    assert!(run(&server, &["gc"]).err.contains("deleted 0 blobs"));
    assert!(run(&server, &["gc", "--dry-run"]).err.contains("0 blobs"));
}

#[tokio::test]
async fn a_pinned_model_stays() {
    let server = Server::start(&[]).await;
    let other = variant(3);
    server.create("kept", &tiny_model()).await;
    server.create("other", other.path()).await;
    done(&server, &["pin", "kept"]);
    fails(&server, &["rm", "kept"], "lode unpin");
    let models = document(&server, &["list"]);
    let pinned: Vec<bool> = list(&models["models"]).iter().map(|model| model["pinned"] == true).collect();
    assert_eq!(pinned.iter().filter(|pinned| **pinned).count(), 1, "{models}");
    assert!(done(&server, &["du"]).contains("pinned"));

    let planned = done(&server, &["prune", "--older-than", "0s", "--dry-run"]);
    assert!(planned.contains("other:latest") && !planned.contains("kept:latest"), "{planned}");
    done(&server, &["prune", "--older-than", "30d"]);
    fails(&server, &["prune", "--older-than", "0s"], "--yes");
    assert_eq!(list(&document(&server, &["list"])["models"]).len(), 2);
    done(&server, &["prune", "--older-than", "0s", "--yes"]);
    let left = document(&server, &["list"]);
    assert_eq!(list(&left["models"]).len(), 1);
    assert_eq!(left["models"][0]["name"], "kept:latest");
    assert_eq!(document(&server, &["du"])["unreferenced_bytes"], 0, "the collection follows at once");

    done(&server, &["unpin", "kept"]);
    fails(&server, &["unpin", "kept"], "not pinned");
    fails(&server, &["pin", "nope"], "not found");
    done(&server, &["rm", "kept"]);
    assert_eq!(files(&server.home().join("blobs")), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_model_in_use_is_not_pruned() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    server.ask("/api/generate", &json!({"model": "m", "stream": false})).await;
    let planned = done(&server, &["prune", "--older-than", "0s", "--dry-run"]);
    assert!(!planned.contains("m:latest"), "it is loaded: {planned}");
    done(&server, &["stop", "m"]);
    assert!(done(&server, &["prune", "--older-than", "0s", "--dry-run"]).contains("m:latest"));
}
