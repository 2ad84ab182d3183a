//! `lode perplexity`, compared with the runner's logits and with recorded results of other
//! programs.

use serde_json::{Value, json};

use crate::server::{Runner, Server};
use crate::smollm2;
use crate::support::{fixtures, tiny_model};

/// A text for the tiny model.
const TEXT: &str = "The quick brown fox jumps over the lazy dog, and the dog does not mind: it is lazy after all.";

/// Returns the summed negative log-probability of a window's tokens from index `from` on.
async fn nll(runner: &Runner, tokens: &[u64], from: usize) -> f64 {
    let logits = runner.logits(tokens, false).await;
    let scored = (from..tokens.len())
        .map(|at| -smollm2::log_softmax(&logits[at - 1])[usize::try_from(tokens[at]).expect("small")]);
    scored.sum::<f64>()
}

#[tokio::test]
async fn windows_are_evaluated_one_by_one() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let runner = server.runner("tiny").await;
    let tokens = runner.tokenize(TEXT, true, false).await;
    assert!(tokens.len() > 20, "only {} tokens", tokens.len());
    let around = runner.tokenize("", true, false).await;
    for (window, second_half) in [(None, false), (Some(8), false), (Some(8), true)] {
        let scored = if second_half { "second_half" } else { "all" };
        let request = json!({"model": "tiny", "text": TEXT, "window": window, "scored": scored});
        let answer = server.ask("/api/lode/perplexity", &request).await;
        let size = window.unwrap_or(tokens.len());
        let from = if second_half { size / 2 + 1 } else { 1 };
        let (mut sum, mut count, mut windows) = (0.0, 0, 0);
        for part in tokens.chunks(size).filter(|part| part.len() == size || (!second_half && part.len() > 1)) {
            let mut part = part.to_vec();
            if around.first() == Some(&tokens[0]) {
                part[0] = around[0];
            }
            sum += nll(&runner, &part, from).await;
            (count, windows) = (count + part.len() - from, windows + 1);
        }
        let mean = sum / count as f64;
        assert_eq!((&answer["scored"], &answer["windows"]), (&json!(count), &json!(windows)), "{window:?} {scored}");
        assert_eq!(answer["tokens"], json!(tokens.len()));
        let (found, perplexity) = (float(&answer["mean_nll"]), float(&answer["perplexity"]));
        assert!((found - mean).abs() < 1e-5, "{window:?} {scored}: {found}, expected {mean}");
        assert!((perplexity.ln() - mean).abs() < 1e-5, "{window:?} {scored}: {perplexity}, expected e^{mean}");
    }
}

#[tokio::test]
async fn what_cannot_be_measured_is_said() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    for (request, status, says) in [
        (json!({"model": "none", "text": TEXT}), 404, "not found"),
        (json!({"model": "tiny", "text": TEXT, "window": 1}), 400, "expected 2 to"),
        (json!({"model": "tiny", "text": TEXT, "window": 1_u64 << 40}), 400, "expected 2 to"),
        (json!({"model": "tiny", "text": ""}), 400, "at least"),
        (json!({"model": "tiny", "text": "a", "window": 64, "scored": "second_half"}), 400, "at least"),
    ] {
        let (code, answer) = server.call("/api/lode/perplexity", &request).await;
        assert_eq!(code, status, "{request}: {answer}");
        assert!(answer["error"].as_str().expect("an error").contains(says), "{answer} should say {says}");
    }
    let output = server.lode(&["perplexity", "tiny", "no-such-file"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot read `no-such-file`"));
    let output = server.lode_reading(&["perplexity", "tiny", "-"], TEXT);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("PERPLEXITY"));
}

#[tokio::test]
async fn a_real_model_has_the_recorded_perplexity() {
    let test = "perplexity::a_real_model_has_the_recorded_perplexity";
    let Some((golden, model)) = smollm2::inputs(test) else { return };
    let Some(folder) = fixtures(test, "real") else { return };
    let text = folder.join("perplexity_text.txt");
    let server = Server::start(&[("LODE_REFERENCE", "1")]).await;
    server.create("smollm2", &model).await;
    let measure = |more: &[&str]| -> Value {
        let text = text.to_str().expect("UTF-8");
        let output = server.lode(&[&["perplexity", "smollm2", text, "--format", "json"], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let whole = measure(&[]);
    let expected = float(&golden["transformers_float64"]["teacher_forced"]["perplexity"]);
    let found = float(&whole["perplexity"]);
    assert_eq!(whole["scored"], 431);
    assert!((found / expected - 1.0).abs() < 1e-4, "perplexity {found}, expected {expected}");
    let halves = measure(&["--window", "128", "--second-half"]);
    let expected = float(&golden["perplexity"]["f32"]["llama_perplexity"]["ppl"]);
    let found = float(&halves["perplexity"]);
    assert_eq!(halves["scored"], 189);
    assert!((found / expected - 1.0).abs() < 1e-3, "perplexity of windows {found}, expected {expected}");
}

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}
