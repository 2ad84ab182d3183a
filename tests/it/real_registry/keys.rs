//! Third-party clients with a daemon that requires API keys.

use super::{DockerRegistry, check_oras, check_skopeo, run};
use crate::guard::keyed;
use crate::server::Server;
use crate::stored;
use crate::support::{skip, tiny_model};

/// Starts a daemon that requires keys and has the model `tiny`. Returns it with a key that may
/// read.
async fn keyed_with_tiny() -> (Server, tempfile::TempDir, String) {
    let (server, folder, [reader, _, writer]) = keyed().await;
    let model = tiny_model();
    let create = ["create", "tiny", "-f", model.to_str().expect("a path")];
    let made = server.lode_with(&[("LODE_API_KEY", &writer)], &create);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (server, folder, reader)
}

/// A key is accepted as the password of any user name.
#[tokio::test]
async fn clients_send_a_key_as_a_password() {
    let test = "real_registry::keys::clients_send_a_key_as_a_password";
    let (server, _folder, reader) = keyed_with_tiny().await;
    let artifact = format!("{}/library/tiny:latest", server.address);
    let manifest = stored::created(&server.home(), "tiny");
    check_skopeo(test, &artifact, Some(["anybody", &reader]), &manifest);
    check_oras(test, &artifact, Some(["anybody", &reader]), &manifest);

    // A second daemon that stores the key by `lode login`.
    let target = Server::start(&[]).await;
    let refused = target.try_pull(&artifact).await.expect_err("nobody is known there");
    assert!(refused.contains(&format!("lode login {}", server.address)), "{refused}");
    let login = target.lode_reading(&["login", &server.address, "-u", "key", "--password-stdin"], &reader);
    assert!(login.status.success(), "{}", String::from_utf8_lossy(&login.stderr));
    target.pull(&artifact).await;
    let here = stored::manifest(&target.home(), &format!("{}/library/tiny", server.address), "latest");
    assert_eq!(here.digest, manifest.digest);
    let refused = target.try_push(&artifact, &artifact).await;
    assert!(refused.is_err_and(|said| said.contains("`write`")), "a key for reading does not push");
}

#[tokio::test]
async fn skopeo_pushes_with_a_key_that_may() {
    let test = "real_registry::keys::skopeo_pushes_with_a_key_that_may";
    if run("skopeo", &["--version"]).is_err() {
        return skip(test, "there is no skopeo; scripts/test installs it");
    }
    let source = Server::start(&[]).await;
    source.create("tiny", &tiny_model()).await;
    let (server, _folder, [reader, _, writer]) = keyed().await;
    let from = format!("docker://{}/library/tiny:latest", source.address);
    let to = format!("docker://{}/library/tiny:latest", server.address);
    let copy = |arguments: &[&str]| {
        let all = ["copy", "-q", "--src-tls-verify=false", "--dest-tls-verify=false", &from, &to];
        run("skopeo", &[&all[..], arguments].concat())
    };
    assert!(copy(&[]).is_err(), "nobody is known");
    assert!(copy(&["--dest-creds", &format!("anybody:{reader}")]).is_err(), "a key for reading");
    copy(&["--dest-creds", &format!("anybody:{writer}")]).unwrap_or_else(|said| panic!("skopeo copy: {said}"));
    let digest = |server: &Server| stored::created(&server.home(), "tiny").digest;
    assert_eq!(digest(&source), digest(&server));
}

/// docker-registry, configured as a mirror, sends the user and the password of its configuration.
#[tokio::test]
async fn a_mirror_sends_a_key() {
    let test = "real_registry::keys::a_mirror_sends_a_key";
    let (server, _folder, reader) = keyed_with_tiny().await;
    let proxy = format!("proxy: {{remoteurl: 'http://{}', username: mirror, password: {reader}}}\n", server.address);
    let Some(mirror) = DockerRegistry::with(test, |_| proxy).await else { return };
    let target = Server::start(&[]).await;
    let artifact = format!("{}/library/tiny:latest", mirror.address);
    target.pull(&artifact).await;
    let here = stored::manifest(&target.home(), &format!("{}/library/tiny", mirror.address), "latest");
    assert_eq!(here.digest, stored::created(&server.home(), "tiny").digest);
}
