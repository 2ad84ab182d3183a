//! The web page in a real browser: Debian's Chromium against a real daemon. The sessions are in
//! `tests/browser/`.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use crate::guard::owned;
use crate::pictures::seeing;
use crate::server::Server;
use crate::support::{models, root, skip, tiny_model, variant};

/// Returns the Python that drives the browser; `None` if there is none.
fn python(test: &str) -> Option<OsString> {
    let python = std::env::var_os("LODE_TEST_BROWSER");
    if python.is_none() {
        skip(
            test,
            "LODE_TEST_BROWSER names no Python with `playwright`; scripts/test makes one, and installs chromium",
        );
    }
    python
}

/// Runs a browser session.
fn session(python: &OsStr, script: &str, arguments: &[&str]) {
    let script = root().join("tests/browser").join(script);
    let output = Command::new(python).arg(script).args(arguments).output().expect("Python runs");
    let say = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", say(&output.stdout), say(&output.stderr));
    assert_eq!(say(&output.stdout).trim(), "ok", "a session ends with its last line");
}

/// Starts a daemon with the tiny model.
async fn daemon() -> Server {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn every_view() {
    let Some(python) = python("browser::every_view") else { return };
    let server = daemon().await;
    session(&python, "views.py", &[&server.address]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat() {
    let Some(python) = python("browser::a_chat") else { return };
    let server = Server::start(&[]).await;
    // Uses a real model if there is one, because the tiny model's output contains no Markdown.
    let real = models().map(|folder| folder.join("smollm2-135m-q4_1.gguf")).filter(|file| file.is_file());
    server.create("talker", &real.unwrap_or_else(tiny_model)).await;
    session(&python, "chat.py", &[&server.address, "talker"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_in_a_chat() {
    let Some(python) = python("browser::pictures_in_a_chat") else { return };
    let Some(server) = seeing("browser::pictures_in_a_chat").await else { return };
    server.create("blind", &tiny_model()).await;
    let pictures = root().join("fuzz/seeds/pictures");
    session(&python, "pictures.py", &[&server.address, "m", "blind", pictures.to_str().expect("a path")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_from_another_daemon() {
    let Some(python) = python("browser::models_from_another_daemon") else { return };
    let (server, peer) = (Server::start(&[]).await, Server::start(&[]).await);
    peer.create("one", variant(1).path()).await;
    let (folder, home) = (tiny_model(), server.home());
    let [folder, home] = [&folder, &home].map(|path| path.to_str().expect("a path"));
    session(&python, "models.py", &[&server.address, &peer.address, folder, home]);
}

#[tokio::test(flavor = "multi_thread")]
async fn api_keys() {
    let Some(python) = python("browser::api_keys") else { return };
    let (server, _folder, [owner, reader]) = owned().await;
    session(&python, "keys.py", &[&server.address, &owner, &reader]);
}
