//! Vocabularies in the runner's table format: a table is built once, mapped by every load, rebuilt
//! if it is missing or invalid, and removed with the model.

use std::path::PathBuf;

use serde_json::json;

use crate::server::Server;
use crate::support::{entries, fixtures, tiny_model};

/// Returns the tables in a server's store.
fn tables(server: &Server) -> Vec<PathBuf> {
    let folder = server.home().join("derived");
    if folder.is_dir() { entries(&folder) } else { Vec::new() }
}

/// Returns a model's output from a new process.
async fn answer(server: &Server, model: &str) -> String {
    let request = json!({
        "model": model, "prompt": "hello", "stream": false, "keep_alive": 0, "options": {"temperature": 0, "num_predict": 8}
    });
    server.ask("/api/generate", &request).await["response"].as_str().expect("text").to_owned()
}

#[tokio::test]
async fn are_made_once_for_each_vocabulary_and_go_with_it() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    server.create("same", &tiny_model()).await;
    assert!(tables(&server).is_empty(), "nobody has loaded it");
    let first = answer(&server, "tiny").await;
    let [table] = &tables(&server)[..] else { panic!("one table: {:?}", tables(&server)) };
    let made = std::fs::metadata(table).and_then(|table| table.modified()).expect("a file");
    assert_eq!(answer(&server, "same").await, first);
    let again = std::fs::metadata(table).and_then(|table| table.modified()).expect("a file");
    assert_eq!((tables(&server).len(), again), (1, made), "it is not made again");
    server.lode(&["rm", "tiny"]);
    assert_eq!(tables(&server).len(), 1, "another model has the vocabulary");
    // The next collection removes tables of other builds.
    let other = table.with_extension("0123456789abcdef");
    std::fs::write(&other, "made by another build").expect("a file");
    server.lode(&["rm", "same"]);
    assert!(tables(&server).is_empty(), "{:?}", tables(&server));
}

#[tokio::test]
async fn that_are_no_good_are_made_again() {
    let server = Server::start(&[]).await;
    let test = "token_tables::that_are_no_good_are_made_again";
    let files = ["qwen3", "llama-spm"].map(|name| fixtures(test, &format!("gguf/models/{name}")));
    let files = files.into_iter().flatten().map(|folder| folder.join("model.gguf"));
    for (number, path) in files.chain([tiny_model()]).enumerate() {
        let name = &format!("m{number}");
        server.create(name, &path).await;
        let first = answer(&server, name).await;
        let table = tables(&server).pop().expect("a table");
        let whole = std::fs::read(&table).expect("a table");
        let mut other = whole.clone();
        other[whole.len() / 2] ^= 1;
        for damaged in [b"no table".to_vec(), whole[..whole.len() - 1].to_vec(), other] {
            std::fs::write(&table, damaged).expect("a file");
            assert_eq!(answer(&server, name).await, first, "{name}");
            let again = std::fs::metadata(&table).expect("a table").len();
            assert_eq!(again, whole.len() as u64, "rebuilding it");
        }
        std::fs::remove_file(&table).expect("a file");
        assert_eq!(answer(&server, name).await, first, "{name}");
        assert!(table.is_file(), "rebuilding it");
        server.lode(&["rm", name]);
    }
}

/// A table that was derived from a damaged document is removed with the repair.
#[tokio::test]
async fn of_a_blob_that_is_set_aside_go_with_it() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    answer(&server, "tiny").await;
    let table = tables(&server).pop().expect("a table");
    let name = table.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let digest = name.split_once('.').expect("a version").0.trim_start_matches("sha256-");
    let blob = server.home().join("blobs/sha256").join(&digest[..2]).join(digest);
    let mut bytes = std::fs::read(&blob).expect("a blob");
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::remove_file(&blob).expect("a blob");
    std::fs::write(&blob, bytes).expect("a blob");
    let output = server.lode(&["repair", "tiny"]);
    assert!(!table.exists(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The daemon still works if it cannot store tables.
#[tokio::test]
async fn that_cannot_be_kept_are_made_by_the_runner() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    std::fs::write(server.home().join("derived"), "in the way").expect("a file");
    answer(&server, "tiny").await;
    assert!(server.log().contains("cannot build a token table"), "{}", server.log());
}
