//! Embedding models that sentence-transformers describes: every kind of pooling, prompts, lengths.
//! Unsupported modules are refused.

use std::path::Path;

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{fixtures, json as read_json, list, object, root};

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
        std::fs::write(folder.path().join(name), content.to_string()).expect("a file");
    }
    folder
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
async fn what_is_not_there_is_refused_by_name() {
    let Some(hf) = fixtures("sentences::what_is_not_there_is_refused_by_name", "hf") else { return };
    let server = Server::start(&[]).await;
    let modules = json!([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}]);
    let dense = changed(&hf.join("bert/model"), &json!({"modules.json": modules}));
    server.create("dense", dense.path()).await;
    server.create("plain", &hf.join("bert/model")).await;
    for (body, expected) in [
        (json!({"model": "dense", "input": "x"}), "`2_Dense` (sentence_transformers.models.Dense) is not supported"),
        (json!({"model": "plain", "input": "x", "prompt_name": "query"}), "no prompt"),
    ] {
        let (status, answer) = server.call("/api/embed", &body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(expected)), "{answer}");
    }
}
