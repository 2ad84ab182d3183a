//! Several machines: `lode prefetch`, the Helm chart and the compose file.

use std::process::Command;

use serde_json::Value;

use crate::server::{Server, free_port};
use crate::support::{root, skip, tiny_model};

/// A daemon with the model `mine`, which others pull from its registry.
async fn source() -> (Server, String) {
    let server = Server::start(&[]).await;
    server.create("mine", &tiny_model()).await;
    let model = format!("{}/library/mine", server.address);
    (server, model)
}

fn text(output: &std::process::Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

async fn has(node: &Server, model: &str) -> bool {
    let listed: Value =
        node.http.get(node.url("/api/tags")).send().await.expect("an answer").json().await.expect("JSON");
    let models = listed["models"].as_array().expect("models");
    models.iter().any(|entry| entry["name"].as_str().is_some_and(|name| name.starts_with(model)))
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_fetch_models() {
    let (source, model) = source().await;
    let nodes = [Server::start(&[]).await, Server::start(&[]).await, Server::start(&[]).await];
    let [first, second, third] = [0, 1, 2].map(|node: usize| nodes[node].address.as_str());
    let done = source.lode(&["prefetch", &model, "--nodes", &format!("{first},http://{second}"), "--all-addresses"]);
    let (lines, messages) = text(&done);
    assert!(done.status.success() && messages.contains("2 nodes have 1 models"), "{lines}{messages}");
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(has(&nodes[0], &model).await && has(&nodes[1], &model).await && !has(&nodes[2], &model).await);

    // A machine that is off, a model that does not exist: the rest is done, and the command fails.
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let off = format!("127.0.0.1:{}", free_port());
    std::fs::write(file.path(), format!("# the machines\n{third}\n\n{off} # is off\n{third}\n")).expect("written");
    let file = file.path().to_str().expect("UTF-8");
    let missing = format!("{}/library/none", source.address);
    let done = source.lode(&["prefetch", &missing, &model, "--nodes-from", file, "--format", "json"]);
    let (lines, messages) = text(&done);
    assert!(!done.status.success() && messages.contains("3 of 4 pulls failed"), "{lines}{messages}");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |node: &str, model: &str| {
        let found = lines.iter().find(|line| line["node"] == format!("http://{node}") && line["model"] == model);
        found.unwrap_or_else(|| panic!("no line for {node} and {model}: {lines:?}"))["error"].clone()
    };
    assert!(of(third, &model).is_null() && has(&nodes[2], &model).await);
    assert!(of(third, &missing).as_str().is_some_and(|error| error.contains("none")), "{lines:?}");
    assert!(of(&off, &model).as_str().is_some_and(|error| error.contains("did not answer")), "{lines:?}");
}

#[tokio::test]
async fn wrong_nodes_are_explained() {
    let (source, model) = source().await;
    for (arguments, reason) in [
        (&["--nodes", "ftp://x"][..], "not the address of a daemon"),
        (&["--nodes-from", "/none"], "/none"),
        (&[], "--nodes"),
    ] {
        let done = source.lode(&[&["prefetch", &model], arguments].concat());
        let (_, messages) = text(&done);
        assert!(!done.status.success() && messages.contains(reason), "{arguments:?}: {messages}");
    }
}

#[test]
fn the_chart_and_the_compose_file_are_valid() {
    const TEST: &str = "fleet::the_chart_and_the_compose_file_are_valid";
    let Some(python) = std::env::var_os("LODE_TEST_HELM") else {
        return skip(
            TEST,
            "LODE_TEST_HELM names no Python with the packages of Helm and Kubernetes; scripts/test makes one",
        );
    };
    let mut command = Command::new(python);
    command.arg(root().join("tests/deployment/check.py"));
    command.args([root().join("packaging/helm/lode"), root().join("packaging/compose.yaml")]);
    let done = command.output().expect("Python runs");
    let (lines, messages) = text(&done);
    assert!(done.status.success() && lines.contains("objects"), "{lines}{messages}");
}
