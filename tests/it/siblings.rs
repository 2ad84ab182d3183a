//! Tiny models of families that differ from others only by a name or a number, and the text parts
//! of multimodal models. The tests are end to end, from a folder with only a config, weights and a
//! tokenizer.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::fixture_models::golden;
use crate::server::{Server, in_float32};
use crate::support::{json as read_json, numbers};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

/// Returns a model's folder with a tokenizer that has a word for each token.
fn folder(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(models().join(name).join("model").join(file), folder.path().join(file)).expect("a copy");
    }
    let words: serde_json::Map<String, Value> = (0..48).map(|id| (format!("w{id}"), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w2"},
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("a tokenizer");
    folder
}

#[tokio::test]
async fn all_of_them_run() {
    let server = Server::start(&[("LODE_KV_CACHE_TYPE", "f32"), in_float32()]).await;
    let mut names: Vec<String> = std::fs::read_dir(models())
        .expect("the models")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| models().join(name).is_dir())
        .collect();
    names.sort();
    assert!(names.len() >= 13, "{names:?}");
    for name in &names {
        let facts = read_json(&models().join(name).join("golden.json"));
        // The runner's own tests compare the hidden states of models that embed.
        if facts["sequences"]["s5"]["greedy_ids"].is_null() {
            continue;
        }
        let own = folder(name);
        server.create(name, own.path()).await;
        let runner = server.runner(name).await;
        // The kernels round the activations that they multiply by FP4 weights.
        let config = read_json(&models().join(name).join("model/config.json"));
        let tolerance = if config["expert_dtype"] == "fp4" { 0.1 } else { 2e-3 };
        for prompt in ["s5", "s24"] {
            let ids = numbers(&facts["sequences"][prompt]["input_ids"]);
            let expected = golden(&models().join(name), &format!("logits.{prompt}"));
            let found = runner.logits(&ids, false).await.concat();
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(found.len() == expected.len() && worst < tolerance, "{name} {prompt}: off by {worst}");
        }
        server.ask("/api/generate", &json!({"model": name, "keep_alive": 0, "stream": false})).await;
    }
}

/// A multimodal model: its vision tensors are kept, listed, and exported unchanged. Requests with
/// images are refused.
#[tokio::test]
async fn pictures_are_refused_and_nothing_is_lost() {
    let server = Server::start(&[in_float32()]).await;
    let own = folder("gemma3");
    server.create("m", own.path()).await;
    let tensors = String::from_utf8(server.lode(&["show", "m", "--tensors"]).stdout).expect("text");
    assert!(tensors.contains("vision_tower.vision_model.embeddings.patch_embedding.weight"), "{tensors}");
    assert!(tensors.contains("\nmodel.layers.1.mlp.up_proj.weight"), "{tensors}");
    let asked = json!({"model": "m", "prompt": "w5", "images": ["aGk="], "stream": false});
    let (status, refusal) = server.call("/api/generate", &asked).await;
    assert_eq!(status, 400, "{refusal}");
    assert!(refusal["error"].as_str().expect("an error").contains("images"), "{refusal}");
    let out = tempfile::tempdir().expect("a temporary folder");
    let target = out.path().join("again");
    let target = target.to_str().expect("a path");
    let exported = server.lode(&["export", "m", "--to", target, "--format", "safetensors", "--dtype", "f32"]);
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    let raw = std::fs::read(Path::new(target).join("model.safetensors")).expect("weights");
    let header = formats::safetensors::Header::parse(&raw, raw.len() as u64).expect("a header");
    assert!(header.tensor("language_model.model.norm.weight").is_some(), "names of a folder stay");
    server.create("again", Path::new(target)).await;
    let facts = read_json(&models().join("gemma3/golden.json"));
    let ids = numbers(&facts["sequences"]["s24"]["input_ids"]);
    let one = server.runner("m").await.logits(&ids, false).await;
    server.ask("/api/generate", &json!({"model": "m", "keep_alive": 0, "stream": false})).await;
    assert_eq!(one, server.runner("again").await.logits(&ids, false).await);
}

/// If only the file of the weights is named, the config beside it is used.
#[tokio::test]
async fn a_single_file_runs_with_what_is_beside_it() {
    let server = Server::start(&[]).await;
    let own = folder("ernie4_5");
    std::fs::copy(own.path().join("model.safetensors"), own.path().join("other.safetensors")).expect("a copy");
    server.create("m", &own.path().join("model.safetensors")).await;
    let (status, answer) = server
        .call(
            "/api/generate",
            &json!({"model": "m", "prompt": "w5 w6", "stream": false, "options": {"num_predict": 2}}),
        )
        .await;
    assert_eq!((status, &answer["prompt_eval_count"]), (200, &json!(2)), "{answer}");
    let tensors = String::from_utf8(server.lode(&["show", "m", "--tensors"]).stdout).expect("text");
    assert_eq!(tensors.matches("model.norm.weight").count(), 1, "{tensors}");
}

/// A model with an unknown architecture is stored, shown, planned and exported. Running it is
/// refused with an error that names the architecture.
#[tokio::test]
async fn what_is_not_known_is_kept() {
    let server = Server::start(&[]).await;
    let own = folder("ernie4_5");
    let config = own.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("a config").replace("\"ernie4_5\"", "\"zebra9\"");
    std::fs::write(&config, text).expect("a config");
    server.create("m", own.path()).await;
    let shown = server.ask("/api/show", &json!({"model": "m"})).await;
    assert_eq!(shown["model_info"]["general.architecture"], "zebra9", "{shown}");
    assert_eq!(shown["model_info"]["zebra9.block_count"], 2, "{shown}");
    assert_eq!(shown["model_info"]["zebra9.embedding_length"], 16, "{shown}");
    let planned = server.lode(&["plan", "m"]);
    let text = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(planned.status.success() && text.contains("zebra9"), "{text}");
    let (status, refusal) = server.call("/api/generate", &json!({"model": "m", "prompt": "w5", "stream": false})).await;
    let error = refusal["error"].as_str().expect("an error");
    assert!(status >= 400 && error.contains("`zebra9`") && error.contains("`docs/models.md`"), "{status} {error}");
    std::fs::write(&config, r#"{"model_type": "recurrent_gemma", "text_config": {"model_type": "recurrent_gemma"}}"#)
        .expect("a config");
    server.create("four", own.path()).await;
    let (_, refusal) = server.call("/api/generate", &json!({"model": "four", "prompt": "w5", "stream": false})).await;
    let error = refusal["error"].as_str().expect("an error");
    assert!(error.contains("`recurrent_gemma` cannot be run yet: it needs gated linear recurrent units"), "{error}");
    let out = tempfile::tempdir().expect("a temporary folder");
    let target = out.path().join("again");
    assert!(server.lode(&["export", "m", "--to", target.to_str().expect("a path")]).status.success());
    assert_eq!(
        std::fs::read(target.join("model.safetensors")).expect("weights"),
        std::fs::read(own.path().join("model.safetensors")).expect("weights")
    );
}
