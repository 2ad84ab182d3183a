//! A store of version 0.1: every model opens, runs if this version supports it, and can be exported
//! bit for bit. `tests/fixtures/README.md` describes its content.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use content::Digest;
use serde_json::{Value, json};

use crate::export::exported;
use crate::maintenance::{done, fails};
use crate::server::Server;
use crate::support::{json as read_json, object, root};

/// Settings with which the results equal those of 0.1, which were recorded with the same settings.
const EXACT: [(&str, &str); 2] = [("LODE_REFERENCE", "1"), ("LODE_KV_CACHE_TYPE", "f32")];
/// Families that 0.1 could not run and this version can.
const NEW: [&str; 4] = ["hf-qwen2", "hf-starcoder2", "mixtral", "qwen2"];

fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures/store-0.1").join(name)
}

fn facts() -> serde_json::Map<String, Value> {
    object(&read_json(&fixture("facts.json"))["models"]).clone()
}

fn unpack(archive: &str, folder: &Path) {
    let status = Command::new("tar").arg("-xzf").arg(fixture(archive)).arg("-C").arg(folder).status();
    assert!(status.expect("tar runs").success(), "{archive} cannot be unpacked");
}

/// Starts a daemon on the store of 0.1.
async fn old_store() -> Server {
    Server::prepared(&EXACT, |home| {
        std::fs::remove_dir(home).expect("an empty folder");
        unpack("store.tar.gz", home.parent().expect("a folder"));
    })
    .await
}

/// Returns a model's output for the prompt that was recorded with 0.1.
async fn says(server: &Server, model: &str) -> Result<String, String> {
    let options = json!({"temperature": 0, "num_predict": 24});
    let request = json!({"model": model, "prompt": "Hello, w", "raw": true, "stream": false, "options": options});
    match server.call("/api/generate", &request).await {
        (200, answer) => Ok(answer["response"].as_str().expect("text").to_owned()),
        (_, failure) => Err(failure["error"].as_str().expect("an error").to_owned()),
    }
}

/// Returns digests by name, without the tag.
async fn listed(server: &Server) -> BTreeMap<String, String> {
    let answer: Value =
        server.http.get(server.url("/api/tags")).send().await.expect("an answer").json().await.expect("JSON");
    let models = answer["models"].as_array().expect("a list").clone();
    let entry = |model: &Value| {
        let name = model["name"].as_str().expect("a name").trim_end_matches(":latest");
        (name.to_owned(), model["digest"].as_str().expect("a digest").to_owned())
    };
    models.iter().map(entry).collect()
}

/// Asserts that all models have their digests of 0.1, and give the recorded output.
async fn assert_all_there(server: &Server) {
    let facts = facts();
    let expected: BTreeMap<String, String> =
        facts.iter().map(|(name, fact)| (name.clone(), fact["digest"].as_str().expect("text").to_owned())).collect();
    assert_eq!(listed(server).await, expected);
    for (name, fact) in &facts {
        let shown = server.ask("/api/show", &json!({"model": name, "verbose": true})).await;
        assert_eq!(shown["details"]["family"], fact["family"], "{name}");
        assert_eq!(shown["details"]["quantization_level"], fact["quantization"], "{name}");
        assert!(shown["tensors"].as_array().is_some_and(|tensors| tensors.len() > 10), "{name}");
        let found = says(server, name).await;
        match (found, fact["says"].as_str()) {
            (Ok(found), Some(expected)) => assert_eq!(found, expected, "{name}"),
            (Ok(found), None) => assert!(NEW.contains(&name.as_str()) && !found.is_empty(), "{name}: {found}"),
            (found, _) => panic!("{name}: {found:?}"),
        }
    }
}

#[tokio::test]
async fn opens_lists_shows_and_runs() {
    let server = old_store().await;
    assert_all_there(&server).await;
    assert!(done(&server, &["fsck"]).contains("no damage") || done(&server, &["fsck"]).is_empty());
    // A restart uses the derived files that this version has stored.
    let server = server.restart(&EXACT).await;
    assert_all_there(&server).await;
}

#[tokio::test]
async fn an_archive_loads() {
    let folder = tempfile::tempdir().expect("a folder");
    let archive = folder.path().join("saved.tar");
    let unpacked = Command::new("gzip").arg("-dc").arg(fixture("saved.tar.gz")).output().expect("gzip runs");
    std::fs::write(&archive, unpacked.stdout).expect("an archive");
    let server = Server::start(&EXACT).await;
    done(&server, &["load", archive.to_str().expect("text")]);
    assert_all_there(&server).await;
}

#[tokio::test]
async fn leaves_as_it_came_and_comes_again() {
    let server = old_store().await;
    let place = tempfile::tempdir().expect("a folder");
    for (name, fact) in facts() {
        let Some(files) = fact["files"].as_object() else {
            // Models that were quantized by Lode have no source files.
            assert!(name.starts_with("quantized"), "{name}");
            continue;
        };
        let folder = place.path().join(&name);
        // A single file is exported to the path itself.
        let to = match files.keys().next() {
            Some(file) if files.len() == 1 => {
                std::fs::create_dir(&folder).expect("a folder");
                folder.join(file)
            }
            _ => folder.clone(),
        };
        let found = exported(&server, &name, &to, &[]);
        for (file, expected) in files {
            let digest: Digest = format!("sha256:{}", expected.as_str().expect("text")).parse().expect("a digest");
            assert_eq!(found.get(file), Some(&digest), "{name}: {file}");
        }
        // A create from the export gives the same output. For folders, it also gives the same
        // tensor blobs.
        let again = format!("{name}-again");
        if name == "adapted" {
            // Its system prompt is in no exported file.
            continue;
        }
        let lines = server.create(&again, &to).await;
        assert_eq!(says(&server, &name).await.ok(), says(&server, &again).await.ok(), "{name}");
        if name.starts_with("hf-") {
            let shared = |line: &Value| line["status"].as_str().is_some_and(|text| text.contains("were there already"));
            assert!(lines.iter().any(shared), "{name}: {lines:?}");
        }
    }
}

#[tokio::test]
async fn becomes_other_formats() {
    let server = old_store().await;
    let place = tempfile::tempdir().expect("a folder");
    for (name, format) in [
        ("llama", "safetensors"),
        ("split", "gguf"),
        ("gemma3", "safetensors"),
        ("qwen2", "safetensors"),
        ("hf-llama", "gguf"),
        ("hf-qwen2", "gguf"),
        ("quantized-gguf", "gguf"),
        ("quantized", "mlx"),
    ] {
        let to = place.path().join(format!("{name}-as-{format}"));
        exported(&server, name, &to, &["--format", format, "--lossy"]);
        let other = format!("{name}-as-{format}");
        server.create(&other, &to).await;
        assert_eq!(says(&server, name).await, says(&server, &other).await, "{other}");
    }
    let to = place.path().join("mixtral");
    let arguments = ["export", "mixtral", "--to", to.to_str().expect("text"), "--format", "safetensors"];
    fails(&server, &arguments, "with experts cannot be written as a folder yet");
}

#[tokio::test]
async fn moves_to_another_store() {
    let (server, other) = (old_store().await, Server::start(&EXACT).await);
    for (name, fact) in facts() {
        let there = format!("{}/library/{name}", other.address);
        server.push(&name, &there).await;
        let expected = fact["says"].as_str().map(str::to_owned);
        let found = says(&other, &name).await;
        if expected.is_some() || NEW.contains(&name.as_str()) {
            let own = says(&server, &name).await.expect("it runs here");
            assert_eq!(found.as_ref(), Ok(&own), "{name}");
        }
    }
    let expected: BTreeMap<String, String> =
        facts().iter().map(|(name, fact)| (name.clone(), fact["digest"].as_str().expect("text").to_owned())).collect();
    assert_eq!(listed(&other).await, expected);
}
