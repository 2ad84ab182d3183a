//! Embedding models that sentence-transformers describes: every kind of pooling, layers behind it,
//! prompts, lengths. Unsupported modules are refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use axum::body::Bytes;
use formats::Dtype;
use formats::safetensors::{Header, Member, canonical_header};
use serde_json::{Value, json};

use crate::export::exported;
use crate::maintenance::files;
use crate::real_registry::hub::Hub;
use crate::server::Server;
use crate::support::{fixtures, json as read_json, list, object, read, root};

/// Copies the fixture with some files replaced.
fn changed(model: &Path, files: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(model).expect("a model").flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("a copy");
        }
    }
    let pooling = "1_Pooling/config.json";
    std::fs::create_dir(folder.path().join("1_Pooling")).expect("a folder");
    std::fs::copy(model.join(pooling), folder.path().join(pooling)).expect("a copy");
    for (name, content) in object(files) {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, content.to_string()).expect("a file");
        if name.contains("_Dense/") {
            std::fs::write(path.with_file_name("model.safetensors"), dense_tensors(content)).expect("a file");
        }
    }
    folder
}

/// Returns the file of a linear layer's tensors: sines of the positions of their numbers, as in
/// `make_sentence_golden.py`.
fn dense_tensors(config: &Value) -> Vec<u8> {
    let width = |key: &str| config[key].as_u64().expect("a number");
    let (inputs, outputs) = (width("in_features"), width("out_features"));
    let member = |name: &str, shape: &[u64]| {
        let size = 4 * shape.iter().product::<u64>();
        Member { name: format!("linear.{name}"), dtype: Dtype::F32, shape: shape.to_vec(), size }
    };
    let mut members = vec![member("weight", &[outputs, inputs])];
    members.extend(config["bias"].as_bool().expect("a flag").then(|| member("bias", &[outputs])));
    let mut file = canonical_header(&members, &BTreeMap::new());
    for member in &members {
        file.extend((0..member.size / 4).flat_map(|at| (at as f32).sin().to_le_bytes()));
    }
    file
}

#[tokio::test]
async fn vectors_are_those_of_sentence_transformers() {
    let Some(hf) = fixtures("sentences::vectors_are_those_of_sentence_transformers", "hf") else { return };
    let golden = read_json(&root().join("tests/models/sentence.json"));
    let server = Server::start(&[]).await;
    for (index, (name, case)) in object(&golden).iter().enumerate() {
        let folder = changed(&hf.join("bert/model"), &case["files"]);
        let model = format!("case{index}");
        server.create(&model, folder.path()).await;
        let body = json!({"model": model, "input": case["texts"], "prompt_name": case["prompt_name"]});
        let answer = server.ask("/api/embed", &body).await;
        let mut body = body;
        body["encoding_format"] = "float".into();
        let other = server.ask("/v1/embeddings", &body).await;
        for (position, expected) in list(&case["vectors"]).iter().enumerate() {
            for vector in [&answer["embeddings"][position], &other["data"][position]["embedding"]] {
                let pairs = list(vector).iter().zip(list(expected));
                let number = |value: &Value| value.as_f64().expect("a number");
                let cosine: f64 = pairs.map(|(a, b)| number(a) * number(b)).sum();
                assert_eq!(list(vector).len(), list(expected).len(), "{name}");
                assert!(cosine > 0.99999, "{name}, text {position}: {cosine}");
            }
        }
        if name == "cut" {
            assert_eq!(answer["prompt_eval_count"], 6 + 6 + 3, "at most six tokens of each text");
            let whole = json!({"model": model, "input": case["texts"], "truncate": false});
            assert_eq!(server.call("/api/embed", &whole).await.0, 400);
        }
    }
}

#[tokio::test]
async fn layers_behind_pooling_are_exported_with_their_folders() {
    let Some(hf) = fixtures("sentences::layers_behind_pooling_are_exported_with_their_folders", "hf") else { return };
    let golden = read_json(&root().join("tests/models/sentence.json"));
    let case = &golden["two layers"];
    let folder = changed(&hf.join("bert/model"), &case["files"]);
    let server = Server::start(&[]).await;
    server.create("source", folder.path()).await;
    let embed = async |model: &str| {
        let answer = server.ask("/api/embed", &json!({"model": model, "input": case["texts"]})).await;
        answer["embeddings"].clone()
    };
    let expected = embed("source").await;
    let to = tempfile::tempdir().expect("a folder");
    for (format, arguments) in
        [("source", &[][..]), ("safetensors", &["--format", "safetensors"]), ("mlx", &["--format", "mlx"])]
    {
        let path = to.path().join(format);
        exported(&server, "source", &path, arguments);
        for module in ["2_Dense", "3_Dense"] {
            let file = read(&path.join(module).join("model.safetensors"));
            let header = Header::parse(&file, file.len() as u64).expect("a header");
            let names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            assert_eq!(names, ["linear.weight"], "{format}, {module}");
        }
        server.create(format, &path).await;
        assert_eq!(embed(format).await, expected, "{format}");
    }
}

/// A hub lists the modules' files besides those of the model.
#[tokio::test]
async fn modules_come_from_a_hub() {
    let Some(hf) = fixtures("sentences::modules_come_from_a_hub", "hf") else { return };
    let golden = read_json(&root().join("tests/models/sentence.json"));
    let case = &golden["a layer behind two modes"];
    let folder = changed(&hf.join("bert/model"), &case["files"]);
    let file = |path: &PathBuf| {
        let name = path.strip_prefix(folder.path()).expect("below").to_string_lossy().into_owned();
        (name, Bytes::from(read(path)))
    };
    let hub = Hub::start();
    hub.publish(&"c0ffee00".repeat(5), &files(folder.path()).iter().map(file).collect());
    let endpoint = format!("http://{}", hub.service.address);
    let server = Server::start(&[("HF_ENDPOINT", &endpoint)]).await;
    server.pull("hf.co/someone/tiny").await;
    server.create("folder", folder.path()).await;
    let embed = async |model: &str| {
        let answer = server.ask("/api/embed", &json!({"model": model, "input": case["texts"]})).await;
        answer["embeddings"].clone()
    };
    assert_eq!(embed("hf.co/someone/tiny").await, embed("folder").await);
}

#[tokio::test]
async fn what_is_not_there_is_refused_by_name() {
    let Some(hf) = fixtures("sentences::what_is_not_there_is_refused_by_name", "hf") else { return };
    let server = Server::start(&[]).await;
    let modules = |last: &str| {
        json!([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Last", "type": format!("sentence_transformers.models.{last}")}])
    };
    let lstm = changed(&hf.join("bert/model"), &json!({"modules.json": modules("LSTM")}));
    let without_files = changed(&hf.join("bert/model"), &json!({"modules.json": modules("Dense")}));
    server.create("lstm", lstm.path()).await;
    server.create("without", without_files.path()).await;
    server.create("plain", &hf.join("bert/model")).await;
    for (body, expected) in [
        (json!({"model": "lstm", "input": "x"}), "`2_Last` (sentence_transformers.models.LSTM) is not supported"),
        (
            json!({"model": "without", "input": "x"}),
            "2_Last/config.json: it is missing; `modules.json` lists its module",
        ),
        (json!({"model": "plain", "input": "x", "prompt_name": "query"}), "no prompt"),
    ] {
        let (status, answer) = server.call("/api/embed", &body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(expected)), "{answer}");
    }
}
