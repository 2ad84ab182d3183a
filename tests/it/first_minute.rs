//! A new user's first minute on an empty store: a name is enough, wherever the model is, and a
//! missing model gets a helpful error.

use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::peers::registries;
use crate::real_registry::hub::{Files, Hub};
use crate::server::{Server, free_port};
use crate::support::{entries, list, name, read, tiny_model};

fn told(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Returns settings in which this peer is a mirror of the default registry, and there are no other
/// registries.
fn mirrored_by(address: &str) -> String {
    format!("[registry.\"registry.ollama.ai\"]\nplain_http = true\nmirrors = [\"http://{address}\"]\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_at_another_daemon_runs() {
    let there = Server::start(&[]).await;
    there.create("tiny", &tiny_model()).await;
    let here = Server::start(&[]).await;
    let name = format!("{}/library/tiny", there.address);
    let output = here.lode(&["run", &name, "Hello"]);
    let (answer, said) = told(&output);
    assert!(output.status.success() && !answer.trim().is_empty(), "{answer}{said}");
    assert!(said.contains("is not in the store; pulling it"), "{said}");
    // The second run finds the model in the store.
    let (again, said) = told(&here.lode(&["run", &name, "Hello"]));
    assert!(!again.trim().is_empty() && said.trim().is_empty(), "{said}");
    // A Modelfile may also name the model.
    let empty = Server::start(&[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let modelfile = folder.path().join("Modelfile");
    std::fs::write(&modelfile, format!("FROM {name}\nSYSTEM Be brief.\n")).expect("a Modelfile");
    let output = empty.lode(&["create", "mine", "-f", modelfile.to_str().expect("a path")]);
    assert!(output.status.success(), "{:?}", told(&output));
    let body = json!({"model": "other", "from": name, "stream": false});
    assert_eq!(empty.ask("/api/create", &body).await["status"], "success");
    let shown = empty.ask("/api/show", &json!({"model": "mine"})).await;
    assert_eq!(shown["system"], "Be brief.");
    assert_eq!(empty.names().await.len(), 3, "the base is here too");
}

/// Reads the available bytes once. Returns 0 at the end of the connection.
async fn received(socket: &mut TcpStream) -> usize {
    let mut bytes = [0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(30), socket.read(&mut bytes)).await.expect("it comes or ends");
    // A peer that closes with unread data resets the connection.
    read.unwrap_or(0)
}

/// The pull of a create is cancelled with its job. A failing registry is not reported as an unknown
/// name.
#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_cannot_be_had() {
    let registry = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let name = format!("{}/library/x", registry.local_addr().expect("an address"));
    let server = Server::start(&[]).await;
    let body = json!({"model": "mine", "from": name, "stream": false});
    let request = server.http.post(server.url("/api/create")).json(&body);
    let create = tokio::spawn(request.try_clone().expect("a request").send());
    let (mut socket, _) = registry.accept().await.expect("a connection");
    assert!(received(&mut socket).await > 0, "a request");
    create.abort();
    assert_eq!(server.ask("/api/lode/jobs/cancel", &json!({"id": 1})).await["state"], "cancelled");
    assert_eq!(received(&mut socket).await, 0, "the pull goes on after its job was cancelled");
    let refuses = async {
        loop {
            let (mut socket, _) = registry.accept().await.expect("a connection");
            received(&mut socket).await;
            let answer = "HTTP/1.1 418 Teapot\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            socket.write_all(answer.as_bytes()).await.expect("it is sent");
        }
    };
    let answer = tokio::select! {
        answer = request.send() => answer.expect("an answer"),
        () = refuses => unreachable!("it goes on"),
    };
    assert_eq!(answer.status(), 500);
    let error: Value = answer.json().await.expect("JSON");
    assert!(error["error"].as_str().is_some_and(|error| error.contains("418")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_a_hub_runs() {
    let hub = Hub::start();
    let files: Files = entries(&tiny_model()).iter().map(|path| (name(path), read(path).into())).collect();
    hub.publish(&"c0ffee00".repeat(5), &files);
    let endpoint = format!("http://{}", hub.service.address);
    let server = Server::start(&[("HF_ENDPOINT", &endpoint)]).await;
    let output = server.lode(&["run", "hf.co/someone/tiny", "Hello"]);
    let (answer, said) = told(&output);
    assert!(output.status.success() && !answer.trim().is_empty(), "{answer}{said}");
    let body = json!({"model": "mine", "from": "hf.co/someone/tiny", "system": "x", "stream": false});
    assert_eq!(server.ask("/api/create", &body).await["status"], "success");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_nowhere_is_told_with_where_was_looked() {
    let there = Server::start(&[]).await;
    let mirrored = mirrored_by(&there.address);
    // No server listens at the default registry's own port here.
    let here = Server::prepared(&[], |home| registries(home, &mirrored)).await;
    here.create("smollm2", &tiny_model()).await;
    let gone = format!("127.0.0.1:{}/library/x", free_port());
    let missing = format!("{}/library/nothing", there.address);
    for (model, expected) in [
        (gone.as_str(), &["cannot be reached: connection refused"][..]),
        (missing.as_str(), &["was not found", &there.address]),
        ("name.invalid/team/x", &["`name.invalid` cannot be reached: no address is known for that name"]),
    ] {
        let output = here.lode(&["run", model, "Hello"]);
        let (_, said) = told(&output);
        assert_eq!(output.status.code(), Some(1));
        let last = said.lines().last().unwrap_or_default();
        assert!(
            last.starts_with(&format!("Error: model `{model}` is not in the store and could not be pulled: ")),
            "{said}"
        );
        assert!(expected.iter().all(|text| last.contains(text)), "{said}");
        // One sentence, without the wrapping errors.
        assert!(!last.contains("error sending request") && !last.contains("dns error"), "{said}");
    }
    let (_, said) = told(&here.lode(&["show", "smolm2"]));
    assert_eq!(said.trim(), "Error: model 'smolm2' not found; did you mean `smollm2`?");
    let (_, said) = told(&here.lode(&["run", "name.invalid/smollm2", "Hello"]));
    assert!(said.trim().ends_with("did you mean `smollm2`?"), "{said}");
    let body = json!({"model": "mine", "from": gone, "stream": false});
    let (status, answer) = here.call("/api/create", &body).await;
    assert!(
        status >= 400 && answer["error"].as_str().is_some_and(|error| error.contains("could not be pulled")),
        "{status} {answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_offered_can_be_searched() {
    let there = Server::start(&[]).await;
    there.create("tiny", &tiny_model()).await;
    there.create("team/coder:v2", &tiny_model()).await;
    let hub = Hub::start();
    let endpoint = format!("http://{}", hub.service.address);
    let peer = format!("[registry.\"{0}\"]\nplain_http = true\n{1}", there.address, mirrored_by(&there.address));
    let here = Server::prepared(&[("HF_ENDPOINT", &endpoint)], |home| registries(home, &peer)).await;
    let (found, _) = told(&here.lode(&["search", "tiny", "--format", "json"]));
    let found: Value = serde_json::from_str(&found).expect("JSON");
    let names: Vec<&str> = list(&found["models"]).iter().map(|model| model["name"].as_str().expect("a name")).collect();
    assert_eq!(
        names,
        [format!("{}/library/tiny:latest", there.address).as_str(), "tiny:latest", "hf.co/someone/tiny"],
        "{found}"
    );
    assert_eq!(found["models"][2]["downloads"], 7);
    // A listed model can be pulled under its listed name.
    here.pull(names[0]).await;
    let (all, said) = told(&here.lode(&["search"]));
    assert!(all.contains("team/coder:v2") && !all.contains("hf.co"), "{all}");
    assert!(said.contains("registry.ollama.ai: no results: "), "{said}");
}
