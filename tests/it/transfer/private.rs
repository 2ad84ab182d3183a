//! A registry that requires authentication.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use crate::peers::assert_same;
use crate::server::Server;
use crate::support::tiny_model;

use super::local;

/// The user `me` with the password `secret`.
const USERS: &str = "me:$2b$10$abcdefghijklmnopqrstuuqflPDzB6gcMhKa1rZqKiun2YGL5sa2u\n";

/// Starts a daemon with the tiny model that requires authentication.
async fn private(folder: &Path, mode: &str, challenge: &str) -> Server {
    let users = folder.join("users");
    std::fs::write(&users, USERS).expect("a file of users");
    let users = users.to_str().expect("a plain path");
    let environment =
        [("LODE_REGISTRY_MODE", mode), ("LODE_REGISTRY_USERS", users), ("LODE_REGISTRY_CHALLENGE", challenge)];
    let server = Server::start(&environment).await;
    server.create("tiny", &tiny_model()).await;
    server
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

async fn check(challenge: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = private(folder.path(), "private", challenge).await;
    let client = Server::start(&[]).await;
    let host = source.address.as_str();
    let name = format!("{host}/library/tiny:latest");
    let refused = client.try_pull(&name).await.expect_err("nobody is known yet");
    assert!(refused.contains(&format!("lode login {host}")), "{refused}");
    assert!(client.names().await.is_empty());

    let login = |password: &str| client.lode_reading(&["login", host, "-u", "me", "--password-stdin"], password);
    let wrong = login("wrong\n");
    assert_eq!(wrong.status.code(), Some(1), "{}", said(&wrong));
    assert!(client.try_pull(&name).await.is_err());
    let right = login("secret\n");
    assert!(right.status.success(), "{}", said(&right));
    let kept = std::fs::metadata(client.home().join("auth.json")).expect("passwords are kept");
    assert_eq!(kept.permissions().mode() & 0o777, 0o600);

    client.pull(&name).await;
    assert_same((&source, &local("tiny")), (&client, &name)).await;
    client.push(&name, &format!("{host}/me/back")).await;
    assert!(source.names().await.contains(&"me/back:latest".to_owned()));
    for (whose, log) in [("the client", client.log()), ("the server", source.log())] {
        let leaks = ["bWU6c2VjcmV0", "secret\""].iter().any(|word| log.contains(word));
        assert!(!leaks, "the password is in the log of {whose}");
    }

    let out = client.lode(&["logout", host]);
    assert!(out.status.success(), "{}", said(&out));
    let refused = client.try_pull(&format!("{host}/me/back")).await.expect_err("nobody is known any more");
    assert!(refused.contains("lode login"), "{refused}");
}

#[tokio::test]
async fn with_tokens() {
    check("bearer").await;
}

#[tokio::test]
async fn with_a_password_each_time() {
    check("basic").await;
}

#[tokio::test]
async fn anybody_may_pull_and_nobody_may_push() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for mode in ["anonymous-pull", "read-only"] {
        let source = private(folder.path(), mode, "bearer").await;
        let client = Server::start(&[]).await;
        let name = format!("{}/library/tiny:latest", source.address);
        client.pull(&name).await;
        let refused = client.try_push(&name, &format!("{}/me/back", source.address)).await;
        let error = refused.expect_err("nobody is known");
        assert!(error.contains(&source.address), "{mode}: {error}");
        assert_eq!(source.names().await, ["tiny:latest"], "{mode}");
    }
}
