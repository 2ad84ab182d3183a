//! A real model, Gemma 3 270M in `Q4_K_M`, compared with next-token logits of transformers in
//! float32 and of llama.cpp (`tests/models/make_gemma_golden.py`).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{json as read_json, list, models, numbers, say, skip};

/// Returns the reference values and the model, if it is there.
fn inputs(test: &str) -> Option<(Value, PathBuf)> {
    let model = models().map(|folder| folder.join("gemma3-270m-q4_k_m.gguf")).filter(|path| path.is_file());
    if model.is_none() {
        skip(test, "the model is not there; `scripts/fetch-model gemma3` gets it");
    }
    Some((read_json(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/gemma3-270m.json")), model?))
}

/// Returns the differences of the logits after each prompt from those of the given implementation.
async fn differences(server: &Server, golden: &Value, whose: &str) -> Vec<f64> {
    let runner = server.runner("gemma3").await;
    let mut all = Vec::new();
    for case in list(&golden["cases"]) {
        let logits = runner.logits(&numbers(&case["ids"]), false).await;
        let last = logits.last().expect("a token");
        for (id, expected) in case[whose].as_object().expect("logits") {
            let id: usize = id.parse().expect("a token");
            all.push((f64::from(last[id]) - expected.as_f64().expect("a number")).abs());
        }
    }
    all
}

fn largest_and_mean(all: &[f64]) -> (f64, f64) {
    (all.iter().copied().fold(0.0, f64::max), all.iter().sum::<f64>() / all.len() as f64)
}

#[tokio::test]
async fn the_reference_mode_is_float32() {
    let Some((golden, model)) = inputs("gemma3::the_reference_mode_is_float32") else { return };
    let server = Server::start(&[("LODE_REFERENCE", "1")]).await;
    server.create("gemma3", &model).await;
    let runner = server.runner("gemma3").await;
    for case in list(&golden["cases"]) {
        let text = case["text"].as_str().expect("a text");
        assert_eq!(runner.tokenize(text, true, true).await, numbers(&case["ids"]), "{text:?}");
    }
    let (largest, mean) = largest_and_mean(&differences(&server, &golden, "float32").await);
    say(&format!("Gemma 3 270M, reference mode: off from float32 by {largest:.5} at most, {mean:.5} in the mean"));
    assert!(largest < 2e-3, "off by {largest}");
}

#[tokio::test]
async fn next_tokens_are_llama_cpp_s() {
    let Some((golden, model)) = inputs("gemma3::next_tokens_are_llama_cpp_s") else { return };
    // The test requests the logits of all tokens at once, which the daemon never does.
    let server = Server::start(&[("LODE_RUNNER_MEMORY_LIMIT", "8GiB")]).await;
    server.create("gemma3", &model).await;
    let (largest, mean) = largest_and_mean(&differences(&server, &golden, "llama_cpp").await);
    say(&format!("Gemma 3 270M: off from llama.cpp by {largest:.3} at most, {mean:.3} in the mean"));
    // Both round the factors to 8 bits, but differently.
    assert!(largest < 2.0 && mean < 0.3, "off by {largest}, {mean} in the mean");
    let asked = json!({"model": "gemma3", "prompt": "1, 2, 3, 4, 5, 6, 7,", "raw": true, "stream": false,
        "options": {"temperature": 0, "num_predict": 3}});
    let answer = server.ask("/api/generate", &asked).await;
    assert_eq!(answer["response"], " 8,", "{answer}");
}
