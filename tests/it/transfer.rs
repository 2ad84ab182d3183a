//! Pulls and pushes between daemons: the transferred content, the content that is not transferred,
//! and the state afterwards.

mod collection;
mod interrupted;
mod jobs;
mod mirrors;
mod peer_daemons;
mod private;
mod progress;

use std::collections::BTreeSet;

use axum::http::Method;
use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::peers::{DEFAULT_HOST, assert_same};
use crate::server::Server;
use crate::stored;
use crate::support::{entries, name, read, tiny_model, until};
use crate::synthetic::{fine_tune, llama};

/// Two tensors of the tiny model that are separate blobs.
const TUNED: [&str; 2] = ["model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.weight"];

/// Starts a daemon with the tiny model as `tiny`.
async fn colleague() -> Server {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    server
}

/// Returns the full name of a model that was created as `name`.
fn local(name: &str) -> String {
    format!("{DEFAULT_HOST}/library/{name}:latest")
}

#[tokio::test]
async fn a_model_comes_from_a_colleague() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let target = Server::start(&[]).await;
    let name = format!("{}/library/tiny", gateway.address);
    let lines = target.pull(&name).await;
    let statuses: Vec<&str> = lines.iter().filter_map(|line| line["status"].as_str()).collect();
    let place = |status: &str| statuses.iter().position(|own| own.starts_with(status)).expect(status);
    let order = ["pulling manifest", "pulling model", "verifying sha256 digest", "writing manifest", "fetched"];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])), "{statuses:?}");

    let full = format!("{name}:latest");
    assert_eq!(target.names().await, [full.as_str()]);
    assert_same((&source, &local("tiny")), (&target, &full)).await;
    let manifest = stored::created(&source.home(), "tiny");
    assert_eq!(gateway.fetched(), manifest.blobs().into_keys().collect());
    assert_eq!(gateway.fetched_bytes(), manifest.blobs().values().sum::<u64>(), "each blob comes once");

    gateway.clear();
    let again = target.pull(&name).await;
    let requests: Vec<String> = gateway.passed().iter().map(|p| format!("{} {}", p.method, p.target)).collect();
    let [one] = requests.as_slice() else { panic!("nothing is to be done: {requests:?}") };
    assert!(one.contains("/v2/library/tiny/manifests/latest"), "{one}");
    assert!(again.iter().any(|line| line["status"].as_str().is_some_and(|s| s.starts_with("fetched 0 blobs"))));
}

/// A key that is not read, and that may change what the model computes, is told wherever the model
/// arrives. The model is kept, and is not run.
#[tokio::test]
async fn a_model_that_cannot_be_run_is_told_on_arrival() {
    let own = tempfile::tempdir().expect("a temporary folder");
    for file in entries(&tiny_model()) {
        std::fs::copy(&file, own.path().join(name(&file))).expect("a copy");
    }
    let config = own.path().join("config.json");
    let mut changed: Value = serde_json::from_slice(&read(&config)).expect("a config");
    changed["logit_curve"] = json!(2.5);
    std::fs::write(&config, changed.to_string()).expect("a config");
    let (source, target) = (Server::start(&[]).await, Server::start(&[]).await);
    let created = source.create("curved", own.path()).await;
    let pulled = target.pull(&format!("{}/library/curved", source.address)).await;
    for lines in [created, pulled] {
        let note = "note: the model is stored but cannot be run: its config.json has `logit_curve`";
        assert!(lines.iter().any(|line| line["status"].as_str().is_some_and(|s| s.starts_with(note))), "{lines:?}");
    }
    let full = format!("{}/library/curved:latest", source.address);
    let shown = target.lode(&["show", &full]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("Cannot be run") && shown.contains("`logit_curve`"), "{shown}");
    let (status, answer) = target.call("/api/generate", &json!({"model": full, "prompt": "w5"})).await;
    assert!(status == 400 && answer.to_string().contains("`logit_curve`"), "{status} {answer}");
}

#[tokio::test]
async fn a_model_goes_to_a_colleague() {
    let source = colleague().await;
    let target = Server::start(&[]).await;
    let gateway = Gateway::to(&target.address);
    let plan = source.lode(&["push", "tiny", &format!("{}/me/tiny", gateway.address), "--dry-run"]);
    let (plan, error) = (String::from_utf8_lossy(&plan.stdout), String::from_utf8_lossy(&plan.stderr));
    assert!(plan.contains("model.embed_tokens.weight") && plan.contains("model.norm.weight"), "{plan}{error}");
    assert!(gateway.passed().iter().all(|p| [Method::GET, Method::HEAD].contains(&p.method)), "{:?}", gateway.passed());
    assert!(target.names().await.is_empty());

    gateway.clear();
    let destination = format!("{}/me/tiny", gateway.address);
    let lines = source.push("tiny", &destination).await;
    let said = |lines: &[serde_json::Value], text: &str| {
        lines.iter().any(|line| line["status"].as_str().is_some_and(|status| status.starts_with(text)))
    };
    let manifest = stored::created(&source.home(), "tiny");
    let count = manifest.blobs().len();
    assert!(said(&lines, "retrieving manifest") && said(&lines, &format!("pushed {count} blobs")), "{lines:?}");
    assert_eq!(gateway.uploaded_bytes(), manifest.blobs().values().sum::<u64>(), "each blob goes once");
    assert_eq!(target.names().await, ["me/tiny:latest"]);
    assert_same((&source, &local("tiny")), (&target, &format!("{DEFAULT_HOST}/me/tiny:latest"))).await;

    gateway.clear();
    let again = source.push("tiny", &destination).await;
    assert!(said(&again, "pushed 0 blobs"), "{again:?}");
    assert_eq!(gateway.uploaded_bytes(), 0);
    // A push to another repository of the same registry mounts the blobs of the first one.
    let elsewhere = source.push("tiny", &format!("{}/me/other:1", gateway.address)).await;
    assert!(said(&elsewhere, "pushed 0 blobs"), "{elsewhere:?}");
    assert_eq!(gateway.uploaded_bytes(), 0);
    assert_eq!(target.names().await.into_iter().collect::<BTreeSet<_>>().len(), 2);
}

#[tokio::test]
async fn a_fine_tune_moves_only_what_it_changed() {
    let source = colleague().await;
    source.create("tuned", fine_tune(&TUNED).path()).await;
    let (base, tuned) = (stored::created(&source.home(), "tiny"), stored::created(&source.home(), "tuned"));
    let difference = tuned.without(&base);
    let bytes: u64 = difference.values().sum();
    let changed = |digest: &&String| difference.contains_key(*digest);
    assert_eq!(tuned.tensors().iter().filter(changed).count(), TUNED.len());

    let gateway = Gateway::to(&source.address);
    let target = Server::start(&[]).await;
    target.pull(&format!("{}/library/tiny", gateway.address)).await;
    gateway.clear();
    let name = format!("{}/library/tuned:latest", gateway.address);
    target.pull(&name).await;
    assert_eq!(gateway.fetched(), difference.keys().cloned().collect());
    assert_eq!(gateway.fetched_bytes(), bytes);
    assert_same((&source, &local("tuned")), (&target, &name)).await;

    let third = Server::start(&[]).await;
    let gateway = Gateway::to(&third.address);
    source.push("tiny", &format!("{}/library/tiny", gateway.address)).await;
    gateway.clear();
    source.push("tuned", &format!("{}/library/tuned", gateway.address)).await;
    assert_eq!(gateway.uploaded_bytes(), bytes);
    assert_same((&source, &local("tuned")), (&third, &local("tuned"))).await;
}

#[tokio::test]
async fn two_pulls_of_one_blob_share_the_transfer() {
    let source = colleague().await;
    let copy = json!({"source": "tiny", "destination": "same"});
    assert_eq!(source.post("/api/copy", &copy).await.status(), 200);
    let gateway = Gateway::to(&source.address);
    let target = Server::start(&[]).await;
    let manifest = stored::created(&source.home(), "tiny");
    let total: u64 = manifest.blobs().values().sum();
    // Holds the first pull in the middle, until the second one waits for a blob of it.
    gateway.hold_after(manifest.raw.len() as u64 + total / 2);
    let name = format!("{}/library/tiny", gateway.address);
    let release = async {
        gateway.reached(manifest.raw.len() as u64 + total / 3).await;
        let waits = async || target.metrics().await.get("lode_fetch_waits_total").is_some_and(|waits| *waits > 0.0);
        until("the second pull waits for a blob of the first", waits).await;
        gateway.release();
    };
    let late = async {
        gateway.reached(manifest.raw.len() as u64 + total / 3).await;
        // Another job, with the same blobs.
        target.pull(&format!("{}/library/same", gateway.address)).await
    };
    let (first, second, ()) = tokio::join!(target.pull(&name), late, release);
    assert!(first.len() > 2 && second.len() > 2);
    assert_eq!(gateway.fetched_bytes(), total, "each blob comes once");
    assert_same((&source, &local("tiny")), (&target, &format!("{name}:latest"))).await;
}

#[tokio::test]
async fn what_is_not_there_is_said_by_name() {
    let source = colleague().await;
    let target = Server::start(&[]).await;
    let host = &source.address;
    let error = target.try_pull(&format!("{host}/library/nope")).await.expect_err("there is no such model");
    assert!(error.contains("nope") && error.contains("not found"), "{error}");
    let error = target.try_pull(&format!("{host}/library/tiny:nope")).await.expect_err("there is no such tag");
    assert!(error.contains("nope"), "{error}");
    let dead = format!("127.0.0.1:{}", crate::server::free_port());
    let error = target.try_pull(&format!("{dead}/library/tiny")).await.expect_err("connection refused");
    assert!(error.contains(&dead), "{error}");
    let error = source.try_push("nope", &format!("{dead}/x/y")).await.expect_err("there is no such model");
    assert!(error.contains("nope"), "{error}");
    let error = source.try_push("tiny", &format!("{dead}/x/y")).await.expect_err("connection refused");
    assert!(error.contains(&dead), "{error}");
    assert!(target.names().await.is_empty());
    assert!(stored::blobs(&target.home()).is_empty());
    let output = target.lode(&["pull", &format!("{host}/library/nope")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty() && String::from_utf8_lossy(&output.stderr).contains("nope"));
}
