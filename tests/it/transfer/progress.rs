//! The progress of each blob during a pull or push, if the request asks for it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{colleague, local};
use crate::gateway::Gateway;
use crate::real_registry::hub::{Files, Hub};
use crate::server::Server;
use crate::stored;
use crate::support::{entries, list, name as file_name, read, tiny_model};

/// The pseudo digest of lines about the whole model.
const WHOLE: &str = "sha256:model";

/// Returns the lines about blobs: by digest, the name and each `(completed, total)` in order.
fn blobs(lines: &[Value]) -> BTreeMap<String, (String, Vec<(u64, u64)>)> {
    let mut blobs = BTreeMap::<String, (String, Vec<(u64, u64)>)>::new();
    for line in lines {
        let Some(digest) = line["digest"].as_str().filter(|digest| *digest != WHOLE) else { continue };
        let number = |name: &str| line[name].as_u64().unwrap_or_else(|| panic!("`{name}` of {line}"));
        let blob = blobs.entry(digest.to_owned()).or_default();
        line["name"].as_str().expect("a name").clone_into(&mut blob.0);
        blob.1.push((number("completed"), number("total")));
    }
    blobs
}

/// Asserts that the progress of every blob reaches its size in the store.
fn assert_complete(lines: &[Value], expect: &BTreeMap<String, u64>) {
    let told = blobs(lines);
    assert_eq!(told.keys().collect::<Vec<_>>(), expect.keys().collect::<Vec<_>>());
    for (digest, (name, steps)) in &told {
        assert!(!name.is_empty(), "{digest}");
        assert_eq!(steps.last(), Some(&(expect[digest], expect[digest])), "{name}");
        assert!(steps.is_sorted(), "{name}: {steps:?}");
    }
    let whole = lines.iter().rfind(|line| line["digest"] == WHOLE).expect("the whole is told, too");
    assert_eq!(whole["completed"], whole["total"], "{whole}");
    assert_eq!(whole["total"], expect.values().sum::<u64>());
}

#[tokio::test]
async fn each_blob_is_told() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let target = Server::start(&[]).await;
    let manifest = stored::created(&source.home(), "tiny");
    let name = format!("{}/library/tiny", gateway.address);
    // The gateway holds the transfer until a line reports an incomplete blob.
    gateway.hold_after(manifest.raw.len() as u64 + manifest.blobs().values().sum::<u64>() / 2);
    let request = json!({"model": name, "insecure": true, "blobs": true});
    let mut answer = target.post("/api/pull", &request).await;
    let (mut lines, mut rest) = (Vec::new(), Vec::new());
    let mut is_held = true;
    while let Some(piece) = answer.chunk().await.expect("a whole answer") {
        rest.extend_from_slice(&piece);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            lines.push(serde_json::from_slice(&rest.drain(..=end).collect::<Vec<_>>()).expect("a line of JSON"));
        }
        if is_held && blobs(&lines).values().any(|(_, steps)| steps.iter().any(|(completed, total)| completed < total))
        {
            is_held = false;
            gateway.release();
        }
    }
    assert!(!is_held, "{lines:?}");
    assert_complete(&lines, &manifest.blobs());
    let told = blobs(&lines);
    assert!(told.values().any(|(name, _)| name == "model.embed_tokens.weight"), "{told:?}");
    assert!(told.values().any(|(name, _)| name == "config"), "{told:?}");

    // A push reports the same for the blobs that it sends.
    let third = Server::start(&[]).await;
    let request =
        json!({"model": local("tiny"), "destination": format!("{}/me/tiny", third.address), "insecure": true});
    let plain = source.lines("/api/push", &request).await;
    assert!(blobs(&plain).is_empty(), "nobody asked: {plain:?}");
    let mut request = request;
    request["destination"] = json!(format!("{}/me/other", third.address));
    request["blobs"] = json!(true);
    assert_complete(&source.lines("/api/push", &request).await, &manifest.blobs());
}

/// A model that is converted during the pull: its blobs get their digests when they are complete.
#[tokio::test]
async fn blobs_that_are_made_are_told_too() {
    let hub = Hub::start();
    let files: Files = entries(&tiny_model()).iter().map(|path| (file_name(path), read(path).into())).collect();
    hub.publish(&"c0ffee00".repeat(5), &files);
    let endpoint = format!("http://{}", hub.service.address);
    let target = Server::start(&[("HF_ENDPOINT", &endpoint)]).await;
    let lines = target.lines("/api/pull", &json!({"model": "hf.co/someone/tiny", "blobs": true})).await;
    assert_eq!(lines.last().expect("a line")["status"], "success", "{lines:?}");
    let told = blobs(&lines);
    let names = target.names().await;
    let shown = target.ask("/api/show", &json!({"model": names[0], "verbose": true})).await;
    for tensor in list(&shown["tensors"]) {
        let (name, steps) = &told[tensor["digest"].as_str().expect("a digest")];
        assert_eq!(name, tensor["name"].as_str().expect("a name"));
        assert_eq!(steps.len(), 1, "{name}");
    }
}
