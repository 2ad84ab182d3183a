//! Files of adopted models that are changed, truncated, replaced or removed, also while the model
//! is loaded: no wrong answer, and an error that names the file.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use serde_json::Value;

use super::{Sources, answer, generate, text};
use crate::maintenance::{digest, done, fails, run};
use crate::server::Server;
use crate::support::{read, until};

/// A change of a file, with a word of the error that names it.
type Change = (&'static str, fn(&Path));

/// Writes into the last tensor, and keeps the length.
fn overwrite(path: &Path) {
    let mut file = File::options().write(true).open(path).expect("the source");
    file.seek(SeekFrom::End(-4096)).expect("a place");
    file.write_all(&[0x3c; 4096]).expect("a write");
}

fn truncate(path: &Path) {
    File::options().write(true).open(path).and_then(|file| file.set_len(5000)).expect("truncated");
}

fn replace(path: &Path) {
    let other = path.with_extension("other");
    let mut bytes = read(path);
    let middle = bytes.len() / 2;
    bytes[middle..].fill(0x3c);
    fs::write(&other, bytes).expect("another file");
    fs::rename(&other, path).expect("replaced");
}

fn remove(path: &Path) {
    fs::remove_file(path).expect("removed");
}

const CHANGES: [Change; 4] =
    [("was changed", overwrite), ("was changed", truncate), ("was changed", replace), ("no longer there", remove)];

fn error(body: &Value) -> &str {
    body["error"].as_str().unwrap_or_else(|| panic!("an error was expected: {body}"))
}

/// Checks that requests fail with the name of the file until it is back.
async fn check_lost(server: &Server, file: &Path, word: &str) {
    let (status, body) = generate(server, "m").await;
    assert_eq!(status, 500, "{body}");
    assert!(error(&body).contains(text(file)) && error(&body).contains(word), "{body}");
    let said = run(server, &["fsck"]);
    assert!(!said.success && said.out.contains(text(file)), "{}{}", said.out, said.err);
    // It is listed all the same, and nothing is collected.
    done(server, &["gc"]);
    assert!(done(server, &["list"]).contains("m:latest"));
    fails(server, &["own", "m"], text(file));
}

#[tokio::test]
async fn a_changed_source_is_noticed_before_a_load() {
    for (word, change) in CHANGES {
        let sources = Sources::new().await;
        let server = Server::start(&[]).await;
        let good = read(&sources.gguf());
        done(&server, &["create", "m", "--in-place", "-f", text(&sources.gguf())]);
        let before = digest(&server, "m");
        change(&sources.gguf());
        check_lost(&server, &sources.gguf(), word).await;
        // The content comes back, and the file is adopted again.
        fs::write(sources.gguf(), good).expect("a write");
        done(&server, &["create", "m", "--in-place", "-f", text(&sources.gguf())]);
        assert_eq!(digest(&server, "m"), before);
        answer(&server, "m").await;
        done(&server, &["fsck"]);
    }
}

#[tokio::test]
async fn a_changed_source_of_a_loaded_model_is_noticed() {
    for (word, change) in CHANGES {
        let sources = Sources::new().await;
        let server = Server::start(&[]).await;
        let good = read(&sources.weights());
        done(&server, &["create", "m", "--in-place", "-f", text(&sources.shards())]);
        let expect = answer(&server, "m").await;
        change(&sources.weights());
        let (status, body) = generate(&server, "m").await;
        // The runner may have noticed it, or may have been ended by the system.
        assert_eq!(status, 500, "{body}");
        assert!(error(&body).contains(text(&sources.weights())), "{body}");
        // The runner that has noticed it ends in a moment.
        until("a load has failed", || async { error(&generate(&server, "m").await.1).contains(word) }).await;
        check_lost(&server, &sources.weights(), word).await;
        fs::write(sources.weights(), good).expect("a write");
        done(&server, &["adopt", text(&sources.shards()), "--name", "m"]);
        assert_eq!(answer(&server, "m").await, expect);
    }
}

#[tokio::test]
async fn a_source_that_was_only_touched_is_read_again() {
    let sources = Sources::new().await;
    let server = Server::start(&[]).await;
    done(&server, &["create", "m", "--in-place", "-f", text(&sources.gguf())]);
    let expect = answer(&server, "m").await;
    // A rename changes the time of the last change of metadata.
    let elsewhere = sources.gguf().with_extension("elsewhere");
    fs::rename(sources.gguf(), &elsewhere).expect("moved");
    fs::rename(&elsewhere, sources.gguf()).expect("moved back");
    // The loaded model notices it, and the next load hashes the file once more.
    let (status, _) = generate(&server, "m").await;
    assert!(matches!(status, 200 | 500), "{status}");
    until("the model answers again", || async { generate(&server, "m").await.0 == 200 }).await;
    assert_eq!(answer(&server, "m").await, expect);
    done(&server, &["fsck"]);
}

#[tokio::test]
async fn a_lost_source_is_fetched_from_the_registry() {
    let sources = Sources::new().await;
    let registry = Server::start(&[]).await;
    registry.create("m", &sources.shards()).await;
    let server = Server::start(&[]).await;
    let name = format!("{}/library/m", registry.address);
    done(&server, &["adopt", text(&sources.shards()), "--name", &name]);
    assert_eq!(digest(&server, &name), digest(&registry, "m"));
    let request = serde_json::json!({"model": name, "prompt": "ab", "stream": false, "options": {"temperature": 0}});
    let expect = server.ask("/api/generate", &request).await["response"].clone();
    done(&server, &["stop", &name]);
    remove(&sources.weights());
    let repaired = run(&server, &["repair", &name]);
    assert!(repaired.success, "{}{}", repaired.out, repaired.err);
    assert_eq!(server.ask("/api/generate", &request).await["response"], expect);
    done(&server, &["fsck"]);
}
