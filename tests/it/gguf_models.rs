//! GGUF files from llama.cpp's converter, compared with the logits that llama.cpp computes from
//! them.

use std::path::{Path, PathBuf};

use crate::fixture_models::golden;
use crate::server::{Runner, Server, in_float32};
use crate::support::{fixtures, json as read_json, numbers, say};

/// Files with a sliding window that llama.cpp ignores. Their reference values come from Hugging
/// Face instead, under the same name.
const HONOURED: [&str; 2] = ["phi3", "exaone4"];

/// A model of the reference data.
struct Model {
    name: String,
    /// The folder with the reference values.
    golden: PathBuf,
    tolerance: f64,
    /// Whether all weights are floats. The reference values of other models come from their weights
    /// in float32, so only the reference mode is compared with them.
    float: bool,
}

/// Returns the models that generate.
fn models(shared: &Path) -> Vec<Model> {
    let folder = shared.join("gguf/models");
    let mut models = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("the models").flatten() {
        let name = entry.file_name().into_string().expect("a name");
        if !entry.path().join("model.gguf").is_file() {
            continue;
        }
        let facts = read_json(&entry.path().join("golden.json"));
        if facts["sequences"]["s5"]["greedy_ids"].is_null() {
            continue;
        }
        let kinds = facts["tensor_types"].as_object().expect("types");
        let float = kinds.keys().all(|kind| ["F32", "F16", "BF16"].contains(&kind.as_str()));
        let golden = if HONOURED.contains(&name.as_str()) { shared.join("hf").join(&name) } else { entry.path() };
        let tolerance = facts["tolerance"]["logits_max_abs"].as_f64().expect("a tolerance");
        models.push(Model { name, golden, tolerance, float });
    }
    models.sort_by(|a, b| a.name.cmp(&b.name));
    models
}

#[tokio::test]
async fn compute_what_llama_cpp_does() {
    let Some(shared) = fixtures("gguf_models::compute_what_llama_cpp_does", "") else { return };
    let models = models(&shared);
    assert!(models.len() >= 61, "{}", models.len());
    for reference in ["1", "0"] {
        // The reference values come from a float32 KV cache.
        let server = Server::start(&[("LODE_REFERENCE", reference), ("LODE_KV_CACHE_TYPE", "f32"), in_float32()]).await;
        let (mut certain, mut all) = (0, 0);
        for model in models.iter().filter(|model| reference == "1" || model.float) {
            let name = &model.name;
            server.create(name, &shared.join("gguf/models").join(name).join("model.gguf")).await;
            let runner = server.runner(name).await;
            certain += check(&runner, model).await;
            all += 3;
            server.ask("/api/generate", &serde_json::json!({"model": name, "keep_alive": 0, "stream": false})).await;
        }
        // The margins of the other continuations are so small that the rounding in llama.cpp's GELU
        // table can change them.
        assert!(certain * 5 > all * 4, "only {certain} of {all} continuations are compared");
    }
}

/// Embedding models as GGUF files, with the pooling that the file names, compared with Hugging
/// Face's embeddings of the same models.
#[tokio::test]
async fn embed_what_the_folders_do() {
    let Some(shared) = fixtures("gguf_models::embed_what_the_folders_do", "") else { return };
    let server = Server::start(&[in_float32()]).await;
    for name in ["bert", "xlm-roberta", "modernbert", "qwen3-embedding"] {
        server.create(name, &shared.join("gguf/models").join(name).join("model.gguf")).await;
        let facts = read_json(&shared.join("hf").join(name).join("golden.json"));
        let texts: Vec<&str> =
            facts["texts"].as_array().expect("texts").iter().filter_map(|text| text["text"].as_str()).collect();
        let found = server.ask("/api/embed", &serde_json::json!({"model": name, "input": texts})).await;
        let found = found["embeddings"].as_array().expect("embeddings");
        let expected = golden(&shared.join("hf").join(name), "embeddings");
        assert_eq!(found.len(), texts.len(), "{name}");
        for ((text, found), expected) in
            texts.iter().zip(found).zip(expected.chunks_exact(expected.len() / texts.len()))
        {
            let found: Vec<f32> =
                found.as_array().into_iter().flatten().map(|x| x.as_f64().expect("a number") as f32).collect();
            let cosine: f32 = found.iter().zip(expected).map(|(a, b)| a * b).sum();
            assert!(cosine > 0.9999, "{name} {text}: {cosine}");
        }
    }
}

/// Compares the logits, and the continuations whose margins are large enough. Returns the number of
/// compared continuations.
async fn check(runner: &Runner, model: &Model) -> usize {
    let Model { name, golden: fixture, tolerance, .. } = model;
    let facts = read_json(&fixture.join("golden.json"));
    let ends = facts.get("end_of_generation").map(numbers).unwrap_or_default();
    let (mut shortest, mut certain) = (true, 0);
    for sequence in ["s5", "s37", "s100"] {
        let facts = &facts["sequences"][sequence];
        let tokens = numbers(&facts["input_ids"]);
        let logits = runner.logits(&tokens, false).await;
        let last = logits.last().expect("a token").clone();
        close(&last, &golden(fixture, &format!("last_logits.{sequence}")), *tolerance, name);
        if std::mem::take(&mut shortest) {
            close(&logits.concat(), &golden(fixture, &format!("logits.{sequence}")), *tolerance, name);
        }
        if facts["greedy_min_margin"].as_f64().is_none_or(|margin| margin > 2.0 * tolerance) {
            let expected = numbers(&facts["greedy_ids"]);
            let (ids, _) = runner.greedy(&tokens, expected.len()).await;
            // The reference continuation goes on after a token that ends the generation.
            let told: Vec<u64> = expected.into_iter().take_while(|id| !ends.contains(id)).collect();
            assert_eq!(ids, told, "{sequence} of {name}");
            certain += 1;
        } else {
            say(&format!("{name} {sequence}: the margin of its continuation is too small to be compared"));
        }
    }
    certain
}

fn close(found: &[f32], expected: &[f32], tolerance: f64, name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let worst = found.iter().zip(expected).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    assert!(worst <= tolerance, "{name}: off by {worst}, {tolerance} are allowed");
}
