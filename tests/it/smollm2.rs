//! A real model, `SmolLM2` 135M in `Q4_1`, compared with recorded results of transformers in
//! float64.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::server::{Runner, Server};
use crate::support::{fixtures, json as read_json, list, models, numbers, skip};

/// Returns the reference values and the model, if both are there.
pub(crate) fn inputs(test: &str) -> Option<(Value, PathBuf)> {
    let golden = fixtures(test, "real")?.join("smollm2.json");
    let model = models().map(|folder| folder.join("smollm2-135m-q4_1.gguf")).filter(|path| path.is_file());
    if model.is_none() {
        skip(test, "the model is not there; `scripts/fetch-model smollm2` gets it");
    }
    Some((read_json(&golden), model?))
}

/// Returns the natural logarithms of the probabilities.
pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - largest) - sum.ln()).collect()
}

/// Returns the differences of the log-probabilities of a text's tokens from the reference, and both
/// perplexities.
async fn teacher_forced(runner: &Runner, golden: &Value) -> (Vec<f64>, f64, f64) {
    let ids = numbers(&golden["perplexity"]["ids"]);
    let reference = &golden["transformers_float64"]["teacher_forced"];
    let logits = runner.logits(&ids, false).await;
    let own: Vec<f64> = logits
        .iter()
        .zip(&ids[1..])
        .map(|(row, next)| log_softmax(row)[usize::try_from(*next).expect("small")])
        .collect();
    let expected: Vec<f64> =
        list(&reference["logprobs"]).iter().map(|value| value.as_f64().expect("a number")).collect();
    assert_eq!(own.len(), expected.len());
    let differences = own.iter().zip(&expected).map(|(a, b)| (a - b).abs()).collect();
    let perplexity = (-own.iter().sum::<f64>() / own.len() as f64).exp();
    (differences, perplexity, reference["perplexity"].as_f64().expect("a number"))
}

#[tokio::test]
async fn text_is_handled_exactly() {
    let Some((golden, model)) = inputs("smollm2::text_is_handled_exactly") else { return };
    let server = Server::start(&[]).await;
    server.create("smollm2", &model).await;
    let runner = server.runner("smollm2").await;
    for case in list(&golden["tokenization"]["cases"]) {
        let text = case["text"].as_str().expect("text");
        assert_eq!(runner.tokenize(text, false, false).await, numbers(&case["ids"]), "{text:?}");
        let parsed = case.get("ids_parse_special").unwrap_or(&case["ids"]);
        assert_eq!(runner.tokenize(text, false, true).await, numbers(parsed), "{text:?} with special tokens");
        assert_eq!(runner.detokenize(&case["ids"]).await, case["detokenized"], "{text:?} back");
    }
    for case in list(&golden["chat"][0]["cases"]) {
        let request = json!({"messages": case["messages"], "add_generation_prompt": true});
        let (_, answer) = runner.call("render", &request).await;
        assert_eq!(answer["text"], case["prompt"]);
    }
}

#[tokio::test]
async fn reference_mode_is_exact() {
    let Some((golden, model)) = inputs("smollm2::reference_mode_is_exact") else { return };
    let server = Server::start(&[("LODE_REFERENCE", "1")]).await;
    server.create("smollm2", &model).await;
    let runner = server.runner("smollm2").await;
    let (differences, perplexity, expected) = teacher_forced(&runner, &golden).await;
    let worst = differences.iter().copied().fold(0.0, f64::max);
    assert!(worst <= 0.001, "a log-probability is off by {worst}");
    assert!((perplexity / expected - 1.0).abs() < 1e-4, "perplexity {perplexity}, expected {expected}");
    let steps = list(&golden["transformers_float64"]["steps"]);
    for (case, steps) in list(&golden["completions"]["cases"]).iter().zip(steps) {
        let expected: Vec<u64> = list(steps).iter().map(|step| step[0].as_u64().expect("an id")).collect();
        let (ids, _) = runner.greedy(&numbers(&case["ids"]), expected.len()).await;
        // If the model ended by itself, the last step is the end token, which is not part of the
        // text.
        let ended = case["f32"]["stop_type"] == "eos";
        let expected = if ended { &expected[..expected.len() - 1] } else { &expected[..] };
        assert_eq!(ids, expected, "{}", case["prompt"]);
    }
}

#[tokio::test]
async fn normal_mode_is_close() {
    let Some((golden, model)) = inputs("smollm2::normal_mode_is_close") else { return };
    let server = Server::start(&[]).await;
    server.create("smollm2", &model).await;
    let runner = server.runner("smollm2").await;
    let (differences, perplexity, expected) = teacher_forced(&runner, &golden).await;
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    crate::support::say(&format!(
        "smollm2, normal mode: mean |Δ log p| {mean:.4}, perplexity {perplexity:.3} of {expected:.3}"
    ));
    assert!(mean <= 0.1, "log-probabilities are off by {mean} on average");
    assert!((perplexity / expected - 1.0).abs() <= 0.02, "perplexity {perplexity}, expected {expected}");
}
