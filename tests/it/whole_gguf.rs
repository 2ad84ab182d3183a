//! Models of whole GGUF files that a registry client pushed: they are listed, and run directly from
//! the blob.

use std::path::Path;

use content::Digest;
use serde_json::{Value, json};

use crate::export::exported;
use crate::maintenance::fails;
use crate::server::Server;
use crate::support::{fixtures, json as read_json, list, models, numbers, read, skip};

/// Ollama's media types of weights and configs.
pub(super) const OLLAMA: &str = "application/vnd.ollama.image.model";
pub(super) const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Uploads a blob as a registry client does, and returns its descriptor.
async fn upload(server: &Server, bytes: &[u8]) -> Value {
    let digest = Digest::of(bytes);
    let url = server.url("/v2/someone/model/blobs/uploads/");
    let begun = server.http.post(url).send().await.expect("the registry answers");
    assert_eq!(begun.status().as_u16(), 202, "{begun:?}");
    let location = begun.headers()["location"].to_str().expect("a URL").to_owned();
    let location = if location.starts_with('/') { server.url(&location) } else { location };
    let separator = if location.contains('?') { '&' } else { '?' };
    let put = server.http.put(format!("{location}{separator}digest={digest}")).body(bytes.to_vec());
    let done = put.send().await.expect("the registry answers");
    assert_eq!(done.status().as_u16(), 201, "{done:?}");
    json!({"digest": digest.to_string(), "size": bytes.len()})
}

/// Pushes a manifest whose layers are these files, each with its media type.
pub(super) async fn push(server: &Server, files: &[(&Path, &str)], config_type: &str) {
    let mut layers = Vec::new();
    for (file, media_type) in files {
        let mut layer = upload(server, &read(file)).await;
        layer["mediaType"] = (*media_type).into();
        layers.push(layer);
    }
    let mut config = upload(server, b"{}").await;
    config["mediaType"] = config_type.into();
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
    let put = server.http.put(server.url("/v2/someone/model/manifests/latest")).header("content-type", MANIFEST);
    let done = put.body(manifest.to_string()).send().await.expect("the registry answers");
    assert_eq!(done.status().as_u16(), 201, "{}", done.text().await.unwrap_or_default());
}

#[tokio::test]
async fn its_file_comes_out_as_it_is() {
    let Some(folder) = fixtures("whole_gguf::its_file_comes_out_as_it_is", "gguf/meta") else { return };
    let server = Server::start(&[]).await;
    let file = folder.join("mixed_types.gguf");
    push(&server, &[(&file, OLLAMA)], CONFIG).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    for format in ["origin", "gguf"] {
        let to = place.path().join(format);
        exported(&server, "someone/model", &to, &["--format", format]);
        assert_eq!(read(&to), read(&file), "{format}");
    }
    let to = place.path().join("other");
    for arguments in [&["--format", "safetensors"][..], &["--format", "mlx"], &["--format", "gguf", "--dtype", "f16"]] {
        let all = [&["export", "someone/model", "--to", to.to_str().expect("a path")], arguments].concat();
        fails(&server, &all, "`--format origin`");
    }
    assert!(!to.exists());
}

#[tokio::test]
async fn its_tensors_are_listed() {
    let Some(folder) = fixtures("whole_gguf::its_tensors_are_listed", "gguf/meta") else { return };
    for (media_type, config_type) in [
        (OLLAMA, CONFIG),
        ("application/vnd.docker.ai.gguf.v3", "application/vnd.docker.ai.model.config.v0.1+json"),
        ("application/vnd.cncf.model.weight.v1.raw", "application/vnd.cncf.model.config.v1+json"),
    ] {
        let server = Server::start(&[]).await;
        push(&server, &[(&folder.join("mixed_types.gguf"), media_type)], config_type).await;
        let shown = server.ask("/api/show", &json!({"model": "someone/model", "verbose": true})).await;
        assert_eq!(shown["details"]["family"], "fixture", "{media_type}: {}", shown["details"]);
        let expected = read_json(&folder.join("mixed_types.json"));
        let expected = list(&expected["tensors"]).iter().map(|tensor| {
            let mut shape = numbers(&tensor["dims"]);
            shape.reverse();
            (tensor["name"].clone(), tensor["type"].clone(), shape, tensor["nbytes"].clone())
        });
        let found = list(&shown["tensors"]).iter();
        let found = found.map(|t| (t["name"].clone(), t["type"].clone(), numbers(&t["shape"]), t["size"].clone()));
        let (expected, found): (Vec<_>, Vec<_>) = (expected.collect(), found.collect());
        assert_eq!(found, expected, "{media_type}");
        let (status, answer) = server.call("/api/generate", &json!({"model": "someone/model", "prompt": "x"})).await;
        assert!(status >= 400 && answer.to_string().contains("`fixture`"), "{media_type}: {status} {answer}");
    }
}

#[tokio::test]
async fn it_runs_where_it_lies() {
    let test = "whole_gguf::it_runs_where_it_lies";
    let model = models().map(|folder| folder.join("smollm2-135m-q4_1.gguf")).filter(|path| path.is_file());
    let Some(model) = model else {
        return skip(test, "the model is not there; `scripts/fetch-model smollm2` gets it");
    };
    let server = Server::start(&[]).await;
    push(&server, &[(&model, OLLAMA)], CONFIG).await;
    server.create("split", &model).await;
    let tokens = [504, 3575, 282, 4649, 314];
    let mut answers = Vec::new();
    for name in ["someone/model", "split"] {
        let runner = server.runner(name).await;
        answers.push(runner.greedy(&tokens, 8).await);
        server.ask("/api/generate", &json!({"model": name, "keep_alive": 0, "stream": false})).await;
    }
    assert_eq!(answers[0], answers[1], "split or whole, it is the same model");
    assert!(!answers[0].0.is_empty());
}
