//! Resilience of the daemon: an unwritable log, unreadable names, files that shrink while they are
//! read, and content without local tags.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{list, read, tiny_model, variant};
use crate::{maintenance, stored};

async fn get(server: &Server, path: &str) -> Value {
    let answer = server.http.get(server.url(path)).send().await.expect("the daemon answers");
    assert!(answer.status().is_success(), "{path}: {}", answer.status());
    answer.json().await.expect("JSON")
}

async fn generates(server: &Server, model: &str) {
    let request = json!({"model": model, "prompt": "x", "stream": false, "options": {"num_predict": 2}});
    server.ask("/api/generate", &request).await;
}

#[tokio::test]
async fn a_log_that_cannot_be_written_harms_nobody() {
    // stderr of the daemon and of its runners is `/dev/full`, where every write fails.
    let server = Server::start_under(&["sh", "-c", "exec \"$@\" 2>/dev/full", "sh"], &[]).await;
    server.create("m", &tiny_model()).await;
    generates(&server, "m").await;
    server.ask("/api/show", &json!({"model": "m"})).await;
    assert_eq!(server.log(), "", "nothing can be written");
}

#[tokio::test]
async fn a_name_that_cannot_be_read_costs_itself_only() {
    let server = Server::start(&[]).await;
    server.create("good", &tiny_model()).await;
    server.create("bad", variant(1).path()).await;
    let tag = server.home().join("tags/registry.ollama.ai/library/bad/:latest");
    let whole = read(&tag);
    std::fs::write(&tag, b"\xff\xfe\xfd").expect("damage");
    let names = get(&server, "/api/tags").await;
    assert_eq!(list(&names["models"]).len(), 1, "{names}");
    assert_eq!(get(&server, "/readyz").await["ready"], true);
    let blobs = stored::blobs(&server.home());
    let collected = server.ask("/api/lode/gc", &json!({})).await;
    assert_eq!((&collected["blobs"], stored::blobs(&server.home())), (&json!(0), blobs));
    maintenance::fails(&server, &["fsck"], "1 problem");
    for command in ["fsck", "doctor"] {
        let said = maintenance::run(&server, &[command]);
        assert!(said.out.contains("bad/:latest` is damaged: it is not text"), "{command}: {}{}", said.out, said.err);
    }
    std::fs::write(&tag, whole).expect("as it was");
    generates(&server, "bad").await;
    maintenance::done(&server, &["fsck"]);
}

#[tokio::test]
async fn an_index_that_is_no_folder_is_made_anew() {
    let mut server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    let index = server.home().join("index");
    server.kill();
    std::fs::remove_dir_all(&index).expect("removal");
    std::fs::write(&index, b"a file").expect("a file");
    let server = server.restart(&[]).await;
    assert_eq!(list(&get(&server, "/api/tags").await["models"]).len(), 1);
    generates(&server, "m").await;
    assert!(index.is_dir());
}

/// Uploads a blob of 24 MiB to the repository `big/blob`. Returns its digest and its file.
async fn big_blob(server: &Server) -> (String, std::path::PathBuf) {
    let bytes: Vec<u8> = (0..24_u32 << 20).map(|at| (at >> 8) as u8 ^ at as u8).collect();
    let digest = content::Digest::of(&bytes).to_string();
    let begun = server.http.post(server.url("/v2/big/blob/blobs/uploads/")).send().await.expect("an upload");
    let place = begun.headers()["location"].to_str().expect("a place").to_owned();
    let sent = server.http.put(server.url(&format!("{place}?digest={digest}"))).body(bytes).send().await;
    assert_eq!(sent.expect("an answer").status().as_u16(), 201);
    let path = stored::path(&server.home(), &digest);
    (digest, path)
}

#[tokio::test]
async fn a_file_that_shrinks_ends_what_reads_it() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    let (digest, path) = big_blob(&server).await;
    let url = server.url(&format!("/v2/big/blob/blobs/{digest}"));
    let mut answer = server.http.get(&url).send().await.expect("an answer");
    let first = answer.chunk().await.expect("the beginning").expect("bytes").len();
    writable(&path).set_len(1 << 20).expect("it is cut short");
    let mut received = first;
    let ended = loop {
        match answer.chunk().await {
            Ok(Some(bytes)) => received += bytes.len(),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    assert!(!ended && received < 24 << 20, "what is not there cannot be sent: {received} bytes");
    // The weights of a model shrink while it is loaded.
    generates(&server, "m").await;
    let layer = largest_layer(&server, "m").await;
    let whole = read(&layer);
    writable(&layer).set_len(0).expect("it is cut short");
    let ask = json!({"model": "m", "prompt": "another one", "raw": true, "stream": false});
    let (status, said) = server.call("/api/generate", &ask).await;
    assert!(status >= 500 && said["error"].is_string(), "{status}: {said}");
    assert_eq!(list(&get(&server, "/api/tags").await["models"]).len(), 1, "the daemon lives");
    std::fs::remove_file(&layer).expect("removal");
    std::fs::write(&layer, whole).expect("as it was");
    generates(&server, "m").await;
}

fn writable(path: &Path) -> std::fs::File {
    let mut permissions = std::fs::metadata(path).expect("a file").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    std::fs::set_permissions(path, permissions).expect("it can be written");
    OpenOptions::new().write(true).open(path).expect("a file")
}

async fn largest_layer(server: &Server, model: &str) -> std::path::PathBuf {
    let history = server.ask("/api/lode/history", &json!({"model": model})).await;
    let digest = history["versions"][0]["digest"].as_str().expect("a digest").to_owned();
    let manifest: Value = serde_json::from_slice(&stored::blob(&server.home(), &digest)).expect("a manifest");
    let layers = list(&manifest["layers"]).iter();
    let largest = layers.max_by_key(|layer| layer["size"].as_u64()).expect("a layer");
    stored::path(&server.home(), largest["digest"].as_str().expect("a digest"))
}

#[tokio::test]
async fn a_collection_says_what_it_leaves() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    std::fs::write(server.home().join("leases/unreadable"), b"\xff").expect("damage");
    let removed = server.http.delete(server.url("/api/delete")).json(&json!({"model": "m"})).send().await;
    assert!(removed.expect("an answer").status().is_success(), "a name can be removed all the same");
    maintenance::fails(&server, &["gc"], "a later collection");
    maintenance::fails(&server, &["gc", "--dry-run"], "leases/unreadable` is damaged");
    assert!(!stored::blobs(&server.home()).is_empty());
    std::fs::remove_file(server.home().join("leases/unreadable")).expect("removal");
    maintenance::done(&server, &["gc"]);
    assert!(stored::blobs(&server.home()).is_empty());
}

#[tokio::test]
async fn what_passed_through_is_looked_after() {
    let theirs = Server::start(&[]).await;
    theirs.create("theirs", &tiny_model()).await;
    let server = Server::start(&[("LODE_PULL_THROUGH", theirs.address.as_str())]).await;
    server.create("mine", variant(1).path()).await;
    let before = stored::blobs(&server.home());
    let path = |of: &str| format!("/v2/library/theirs/{of}?ns={}", theirs.address);
    let manifest = get(&server, &path("manifests/latest")).await;
    for layer in list(&manifest["layers"]).iter().chain([&manifest["config"]]) {
        let blob = path(&format!("blobs/{}", layer["digest"].as_str().expect("a digest")));
        let answer = server.http.get(server.url(&blob)).send().await.expect("an answer");
        assert!(answer.bytes().await.is_ok_and(|bytes| Some(bytes.len() as u64) == layer["size"].as_u64()));
    }
    // The cached manifest is listed, but not as a model.
    let linked = maintenance::document(&server, &["list", "--linked"]);
    let entry = &linked["manifests"][0];
    let name = entry["name"].as_str().expect("a name").to_owned();
    assert!(name.starts_with(&format!("{}/library/theirs@sha256:", theirs.address)), "{linked}");
    assert!(entry["bytes"].as_u64().is_some_and(|bytes| bytes > 1000), "{linked}");
    assert_eq!(list(&get(&server, "/api/tags").await["models"]).len(), 1);
    // `repair` restores its blobs.
    let layer = manifest["layers"][0]["digest"].as_str().expect("a digest");
    let file = stored::path(&server.home(), layer);
    writable(&file).write_all_at(b"damage", 0).expect("damage");
    maintenance::fails(&server, &["fsck"], "1 problem");
    assert!(maintenance::done(&server, &["repair"]).contains(layer));
    maintenance::done(&server, &["fsck"]);
    // `prune` considers it only after its age limit.
    let pruned = server.ask("/api/lode/prune", &json!({"older_than": 3600, "dry_run": true})).await;
    assert_eq!(pruned["linked"], json!([]));
    let link = stored_link(&server);
    let day = SystemTime::now() - Duration::from_hours(24);
    OpenOptions::new().write(true).open(&link).and_then(|file| file.set_modified(day)).expect("it is old");
    let pruned = server.ask("/api/lode/prune", &json!({"older_than": 3600, "dry_run": true})).await;
    assert_eq!(pruned["linked"][0]["name"], name.as_str(), "{pruned}");
    // It can be removed by name, and its blobs are collected.
    maintenance::done(&server, &["rm", &name]);
    assert_eq!(maintenance::document(&server, &["list", "--linked"])["manifests"], json!([]));
    assert_eq!(stored::blobs(&server.home()), before);
    maintenance::fails(&server, &["rm", &name], "not found");
}

/// Returns the link file of the only manifest that was cached by the pull-through.
fn stored_link(server: &Server) -> std::path::PathBuf {
    let mut folders = vec![server.home().join("links")];
    while let Some(folder) = folders.pop() {
        for path in crate::support::entries(&folder) {
            match path.is_dir() {
                true => folders.push(path),
                false if folder.ends_with(":manifests") => return path,
                false => {}
            }
        }
    }
    panic!("there is no link")
}
