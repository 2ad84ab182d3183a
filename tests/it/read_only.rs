//! A store on a read-only file system: its content can be used, and changes are refused with an
//! error that names the reason.

use std::process::Command;

use serde_json::json;

use crate::server::Server;
use crate::support::{skip, tiny_model};

/// A command prefix that runs a program with the store's folder mounted read-only.
const READ_ONLY: [&str; 6] = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    "mount --bind \"$LODE_HOME\" \"$LODE_HOME\" && mount -o remount,ro,bind \"$LODE_HOME\" && exec \"$@\"",
    "sh",
];

#[tokio::test]
async fn a_store_that_cannot_be_written_is_used() {
    const TEST: &str = "read_only::a_store_that_cannot_be_written_is_used";
    let probe = tempfile::tempdir().expect("a temporary folder");
    let can_mount =
        Command::new(READ_ONLY[0]).args(&READ_ONLY[1..]).arg("true").env("LODE_HOME", probe.path()).output();
    if !can_mount.is_ok_and(|output| output.status.success()) {
        return skip(TEST, "`unshare --mount` cannot mount here, as only root can");
    }
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let request = json!({"model": "tiny", "prompt": "once", "raw": true, "stream": false, "options": {"temperature": 0, "num_predict": 8}});
    let expected = server.ask("/api/generate", &request).await["response"].clone();
    let server = server.restart_under(&READ_ONLY, &[]).await;
    let notes = |server: &Server| {
        let temporary = server.home().parent().expect("a folder").to_owned();
        let entries = std::fs::read_dir(temporary).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        entries.filter(|name| name.to_string_lossy().starts_with("lode-notes-")).collect::<Vec<_>>()
    };
    let killed = notes(&server);
    let server = server.restart_under(&READ_ONLY, &[]).await;
    let own = notes(&server);
    assert!(killed.len() == 1 && own.len() == 1 && killed != own, "{killed:?} {own:?}");

    let listed = server.lode(&["list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("tiny"), "{listed:?}");
    assert_eq!(server.ask("/api/generate", &request).await["response"], expected);
    assert!(server.ask("/api/show", &json!({"model": "tiny"})).await["details"]["format"].is_string());
    let other = Server::start(&[]).await;
    let name = format!("{}/library/tiny", server.address);
    let pulled = other.lines("/api/pull", &json!({"model": name, "insecure": true})).await;
    assert_eq!(pulled.last().map(|line| &line["status"]), Some(&json!("success")), "{pulled:?}");

    other.ask("/api/create", &json!({"model": "theirs", "from": name, "system": "Hi.", "stream": false})).await;
    for (path, body) in [
        ("/api/create", json!({"model": "again", "from": "tiny", "system": "Hi.", "stream": false})),
        ("/api/copy", json!({"source": "tiny", "destination": "other"})),
        ("/api/lode/gc", json!({})),
        ("/api/pull", json!({"model": format!("{}/library/theirs", other.address), "insecure": true, "stream": false})),
    ] {
        let (status, answer) = server.call(path, &body).await;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(
            status == 403 && error.contains("cannot be written: its file system is read-only"),
            "{path} {status}: {answer}"
        );
    }
    let modelfile = probe.path().join("Modelfile");
    std::fs::write(&modelfile, format!("FROM {}\n", tiny_model().display())).expect("a file");
    for line in [&["rm", "tiny"][..], &["create", "new", "-f", modelfile.to_str().expect("a path")]] {
        let output = server.lode(line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("cannot be written"), "{line:?}: {error}");
        assert!(!error.contains("os error"), "{line:?}: {error}");
    }
    let upload = server.http.post(server.url("/v2/library/tiny/blobs/uploads/")).send().await.expect("an answer");
    assert_eq!(upload.status().as_u16(), 403);

    // The store is unchanged, and works again once it is writable.
    let server = server.restart(&[]).await;
    server.create("more", &tiny_model()).await;
    assert_eq!(server.ask("/api/generate", &request).await["response"], expected);
}
