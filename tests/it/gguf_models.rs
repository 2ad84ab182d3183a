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

/// Continuations with a margin below twice the tolerance, in the order in which they are met: llama.cpp's own table of GELU
/// may turn them. Those of `gemma` are held against Hugging Face's in `fixture_models.rs`.
const UNCERTAIN: [(&str, &[&str]); 4] = [
    ("gemma", &["s5", "s37", "s100"]),
    ("gemma3_text-pattern", &["s100"]),
    ("llama-q8_0", &["s37"]),
    ("qwen3-q4_k_m", &["s5", "s100"]),
];

#[tokio::test]
async fn compute_what_llama_cpp_does() {
    let Some(folder) = fixtures("gguf_models::compute_what_llama_cpp_does", "gguf/models") else { return };
    for (reference, models) in [("1", [&MODELS[..], &QUANTIZED].concat()), ("0", MODELS.to_vec())] {
        // The golden numbers were made with a cache that rounds nothing.
        let server = Server::start(&[("LODE_REFERENCE", reference), ("LODE_KV_CACHE_TYPE", "f32")]).await;
        let mut uncertain = Vec::new();
        for name in models {
            let fixture = folder.join(name);
            server.create(name, &fixture.join("model.gguf")).await;
            let runner = server.runner(name).await;
            uncertain.extend(check(&runner, &fixture, name).await);
            server.ask("/api/generate", &serde_json::json!({"model": name, "keep_alive": 0, "stream": false})).await;
        }
        let expected: Vec<String> = UNCERTAIN
            .iter()
            .filter(|(name, _)| reference == "1" || MODELS.contains(name))
            .flat_map(|(name, sequences)| sequences.iter().map(move |sequence| format!("{sequence} of {name}")))
            .collect();
        assert_eq!(uncertain, expected, "continuations that were not compared");
    }
}

/// The window of phi3 stands in its file and counts, though llama.cpp passes it over: Hugging Face's numbers are right.
#[tokio::test]
async fn a_window_that_stands_in_a_file_counts() {
    let Some(folder) = fixtures("gguf_models::a_window_that_stands_in_a_file_counts", "") else { return };
    let server = Server::start(&[("LODE_REFERENCE", "0"), ("LODE_KV_CACHE_TYPE", "f32")]).await;
    server.create("phi3", &folder.join("gguf/models/phi3/model.gguf")).await;
    let (runner, hf) = (server.runner("phi3").await, folder.join("hf/phi3"));
    let facts = read_json(&hf.join("golden.json"));
    for sequence in ["s5", "s37", "s100"] {
        let tokens = numbers(&facts["sequences"][sequence]["input_ids"]);
        let logits = runner.logits(&tokens, false).await.concat();
        close(&logits, &golden(&hf, &format!("logits.{sequence}")), 2e-3, sequence);
        let expected = numbers(&facts["sequences"][sequence]["greedy_ids"]);
        let (ids, _) = runner.greedy(&tokens, expected.len()).await;
        assert_eq!(ids, expected, "{sequence}");
    }
}

/// Compares, and gives the sequences whose continuation the golden numbers leave open.
async fn check(runner: &Runner, fixture: &Path, name: &str) -> Vec<String> {
    let facts = read_json(&fixture.join("golden.json"));
    let tolerance = facts["tolerance"]["logits_max_abs"].as_f64().expect("a tolerance");
    let (mut shortest, mut uncertain) = (true, Vec::new());
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
        } else {
            uncertain.push(format!("{sequence} of {name}"));
        }
    }
    uncertain
}

fn close(found: &[f32], expected: &[f32], tolerance: f64, name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let worst = found.iter().zip(expected).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    assert!(worst <= tolerance, "{name}: off by {worst}, {tolerance} are allowed");
}
