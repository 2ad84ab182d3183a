//! GGUF files that llama.cpp's converter made, against what llama.cpp computes from them.

use std::path::Path;

use crate::fixture_models::golden;
use crate::server::{Runner, Server};
use crate::support::{fixtures, json as read_json, numbers};

/// Float files of each family that can be run. Of `mistral` and `smollm3` the Hugging Face golden is another: GGUF files
/// cannot say the window of the one and the layers without `RoPE` of the other.
const MODELS: [&str; 11] = [
    "llama",
    "llama-f16",
    "llama-spm",
    "llama-tied-rope3",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma3_text-pattern",
    "smollm3",
    "granite",
];

/// Quantized files: the golden numbers are those of their weights in float32, so the reference mode is held against them.
const QUANTIZED: [&str; 5] = ["llama-q8_0", "llama-wide-q4_k_m", "llama-wide-iq4_xs", "qwen3-bf16", "qwen3-q4_k_m"];

#[tokio::test]
async fn compute_what_llama_cpp_does() {
    let Some(folder) = fixtures("gguf_models::compute_what_llama_cpp_does", "gguf/models") else { return };
    for (reference, models) in [("1", [&MODELS[..], &QUANTIZED].concat()), ("0", MODELS.to_vec())] {
        // The golden numbers were made with a cache that rounds nothing.
        let server = Server::start(&[("LODE_REFERENCE", reference), ("LODE_KV_CACHE_TYPE", "f32")]).await;
        for name in models {
            let fixture = folder.join(name);
            server.create(name, &fixture.join("model.gguf")).await;
            let runner = server.runner(name).await;
            check(&runner, &fixture, name).await;
            server.ask("/api/generate", &serde_json::json!({"model": name, "keep_alive": 0, "stream": false})).await;
        }
    }
}

async fn check(runner: &Runner, fixture: &Path, name: &str) {
    let facts = read_json(&fixture.join("golden.json"));
    let tolerance = facts["tolerance"]["logits_max_abs"].as_f64().expect("a tolerance");
    let mut shortest = true;
    for sequence in ["s5", "s37", "s100"] {
        let facts = &facts["sequences"][sequence];
        let tokens = numbers(&facts["input_ids"]);
        let logits = runner.logits(&tokens, false).await;
        let last = logits.last().expect("a token").clone();
        close(&last, &golden(fixture, &format!("last_logits.{sequence}")), tolerance, name);
        if std::mem::take(&mut shortest) {
            close(&logits.concat(), &golden(fixture, &format!("logits.{sequence}")), tolerance, name);
        }
        if facts["greedy_min_margin"].as_f64().expect("a margin") > 2.0 * tolerance {
            let expected = numbers(&facts["greedy_ids"]);
            let (ids, _) = runner.greedy(&tokens, expected.len()).await;
            assert_eq!(ids, expected, "{sequence} of {name}");
        }
    }
}

fn close(found: &[f32], expected: &[f32], tolerance: f64, name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let worst = found.iter().zip(expected).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    assert!(worst <= tolerance, "{name}: off by {worst}, {tolerance} are allowed");
}
