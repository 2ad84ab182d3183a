//! Damage is found, reported and repaired.

use std::collections::BTreeMap;

use content::Digest;
use serde_json::{Value, json};

use super::{document, done, fails, run};
use crate::server::Server;
use crate::support::{list, tiny_model, variant};

/// Returns the files of a model's tensor blobs, by tensor name.
fn tensors(server: &Server, model: &str) -> BTreeMap<String, std::path::PathBuf> {
    let shown = document(server, &["show", model, "--tensors"]);
    let path = |digest: &str| {
        let hex = digest.parse::<Digest>().expect("a digest").hex();
        server.home().join("blobs/sha256").join(&hex[..2]).join(hex)
    };
    let tensor = |tensor: &Value| {
        let text = |key: &str| tensor[key].as_str().expect("text").to_owned();
        (text("name"), path(&text("digest")))
    };
    list(&shown["tensors"]).iter().map(tensor).collect()
}

/// Replaces the content of a blob's file, or removes the file.
fn damage(path: &std::path::Path, change: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>) {
    let bytes = std::fs::read(path).expect("a blob");
    std::fs::remove_file(path).expect("removal");
    if let Some(bytes) = change(bytes) {
        std::fs::write(path, bytes).expect("damage");
    }
}

#[tokio::test]
async fn is_found_named_and_mended() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    let saved = server.home().join("m.tar");
    let saved = saved.to_str().expect("a path");
    done(&server, &["save", "m", "-o", saved]);
    let fine = run(&server, &["fsck"]);
    assert!(fine.success && fine.out.is_empty(), "{}{}", fine.out, fine.err);

    let tensors = tensors(&server, "m");
    let mut chosen = tensors.iter().take(3);
    let mut next = || chosen.next().expect("a tensor");
    let ((flipped, flipped_path), (cut, cut_path), (lost, lost_path)) = (next(), next(), next());
    damage(flipped_path, |mut bytes| {
        *bytes.last_mut()? ^= 1;
        Some(bytes)
    });
    damage(cut_path, |bytes| Some(bytes[..bytes.len() - 1].to_vec()));
    damage(lost_path, |_| None);

    let found = run(&server, &["fsck"]);
    assert!(!found.success && found.err.contains("3 problems"), "{}{}", found.out, found.err);
    for (tensor, says) in [(flipped, "hash to"), (cut, "descriptor says"), (lost, "missing")] {
        let named = |line: &str| line.contains("'m:latest'") && line.contains(tensor) && line.contains(says);
        assert!(found.out.lines().any(named), "{tensor}: {}", found.out);
    }
    // `--since` skips blobs that were recently found intact. `--sample` starts with blobs that are
    // not known to be intact.
    let since: Value = report(&server, &["fsck", "--since", "1h"]);
    assert_eq!(since["blobs"], 1, "only the damaged one was not found good: {since}");
    let sample = report(&server, &["fsck", "--sample", "1"]);
    assert_eq!((&sample["blobs"], list(&sample["problems"]).len()), (&1.into(), 3), "{sample}");
    fails(&server, &["fsck", "--sample", "101%"], "out of range");
    fails(&server, &["save", "m", "-o", &format!("{saved}.2")], "lode repair");

    let repaired = run(&server, &["repair", "m"]);
    assert!(
        !repaired.success && repaired.out.contains("does not have it; create `m:latest` again"),
        "{}",
        repaired.out
    );
    let found = run(&server, &["fsck"]);
    assert_eq!(found.out.matches("it is missing").count(), 3, "{}", found.out);
    fails(&server, &["run", "m", "x"], "missing");
    done(&server, &["load", saved]);
    assert!(run(&server, &["fsck", "--rebuild"]).success);
    done(&server, &["run", "m", "x"]);
}

/// Returns the JSON report of a failing `fsck`.
fn report(server: &Server, arguments: &[&str]) -> Value {
    let said = run(server, &[arguments, &["--format", "json"]].concat());
    assert!(!said.success, "{arguments:?}: {}", said.out);
    serde_json::from_str(&said.out).expect("JSON")
}

#[tokio::test]
async fn of_names_and_manifests_is_found() {
    let server = Server::start(&[]).await;
    let other = variant(1);
    server.create("good", &tiny_model()).await;
    server.create("bad", other.path()).await;
    let digest = super::digest(&server, "bad").parse::<Digest>().expect("a digest");
    let tags = server.home().join("tags/registry.ollama.ai/library");
    std::fs::create_dir_all(tags.join("broken")).expect("a folder");
    std::fs::write(tags.join("broken/:latest"), "?").expect("damage");
    let hex = digest.hex();
    damage(&server.home().join("blobs/sha256").join(&hex[..2]).join(&hex), |_| Some(b"{}".to_vec()));
    let report = report(&server, &["fsck"]);
    let text = report["problems"].to_string();
    for says in ["broken", "'bad:latest' cannot be read"] {
        assert!(text.contains(says), "no `{says}` in {text}");
    }
    fails(&server, &["gc"], "damaged");
    assert!(run(&server, &["run", "good", "x"]).success, "one model does not harm another");
}

#[tokio::test]
async fn what_was_read_of_a_damaged_model_is_forgotten() {
    let (source, target) = (Server::start(&[]).await, Server::start(&[]).await);
    source.create("plain", &tiny_model()).await;
    source.ask("/api/create", &json!({"model": "m", "from": "plain", "system": "Be brief.", "stream": false})).await;
    let name = format!("{}/library/m", source.address);
    target.ask("/api/pull", &json!({"model": name, "insecure": true, "stream": false})).await;
    let hex = Digest::of(b"Be brief.").hex();
    damage(&target.home().join("blobs/sha256").join(&hex[..2]).join(&hex), |_| Some(b"Be bad!!!".to_vec()));
    let asked = json!({"model": name, "prompt": "x", "stream": false, "_debug_render_only": true});
    let rendered = async || target.ask("/api/generate", &asked).await.to_string();
    assert!(rendered().await.contains("Be bad!!!"), "nobody has looked at it yet");
    done(&target, &["repair", &name]);
    assert!(rendered().await.contains("Be brief."));
}
