//! Folders and files from the field that used to give wrong numbers or an unhelpful message. Each
//! now runs like its reference, or is refused with an error that names the cause.

use serde_json::{Value, json};

use crate::server::{Runner, Server, in_float32};
use crate::support::{fixtures, json as read_json, list, numbers};

mod byte_ranks;
mod ollama_gpt_oss;
mod repacked;

/// The largest difference of the log-probability of a likely token.
const TOLERANCE: f64 = 5e-3;

/// Cases that run, with the path that `create` gets.
const RUN: [(&str, &str); 14] = [
    ("bom_crlf", "model"),
    ("fp8_per_tensor_mistral", "model"),
    ("index_stale", "model"),
    ("infinity_in_config", "model"),
    ("ollama-gemma3-131k", "model.gguf"),
    ("ollama-gptoss", "model.gguf"),
    ("ollama-qwen25vl", "model.gguf"),
    ("ollama-qwen3vl-ollama", "model.gguf"),
    ("only_tokenizer_model", "model"),
    ("tied_twice_differs", "model"),
    ("v5-fused-experts-qwen3_moe", "model"),
    ("variant_beside", "model"),
    ("mmproj", "dir"),
    ("qwen3-embed-bidir", "model"),
];

#[tokio::test]
async fn what_people_have_runs_as_its_reference() {
    let Some(cases) = fixtures("cases2026::what_people_have_runs_as_its_reference", "cases2026") else { return };
    let server = Server::start(&[("LODE_KV_CACHE_TYPE", "f32"), in_float32()]).await;
    for (case, source) in RUN {
        let folder = cases.join(case);
        server.create(case, &folder.join(source)).await;
        if !folder.join("golden.json").is_file() {
            let request = json!({"model": case, "prompt": "a", "stream": false, "options": {"num_predict": 1}});
            assert_eq!(server.ask("/api/generate", &request).await["done"], true, "{case}");
            continue;
        }
        let golden = read_json(&folder.join("golden.json"));
        if golden["emb"].is_string() {
            embeddings(&server, case, &golden).await;
        } else {
            continuations(&server.runner(case).await, case, &golden).await;
        }
        server.call("/api/generate", &json!({"model": case, "keep_alive": 0, "stream": false})).await;
    }
}

/// Starts a daemon whose runners do not round activations to eight bits, as in the references.
async fn exact_server() -> Server {
    Server::start(&[("LODE_REFERENCE", "1"), ("LODE_KV_CACHE_TYPE", "f32"), in_float32()]).await
}

/// Compares the likeliest tokens after each prefix, and their log-probabilities.
async fn continuations(runner: &Runner, case: &str, golden: &Value) {
    for (name, sequence) in golden["sequences"].as_object().expect("sequences") {
        let (mut tokens, steps) = (numbers(&sequence["input_ids"]), list(&sequence["steps"]));
        let prompt = tokens.len();
        tokens.extend(steps.iter().map(|step| step["id"].as_u64().expect("a token")));
        let rows = runner.logits(&tokens, false).await;
        for (at, step) in steps.iter().enumerate() {
            let row = &rows[prompt - 1 + at];
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|logit| f64::from(logit - most).exp()).sum();
            for (id, expected) in numbers(&step["ids"]).into_iter().zip(list(&step["top"])) {
                let found = f64::from(row[id as usize] - most) - sum.ln();
                let expected = expected.as_f64().expect("a number");
                let difference = (found - expected).abs();
                assert!(
                    difference < TOLERANCE,
                    "{case} {name} step {at} token {id}: {found:.5}, expected {expected:.5}"
                );
            }
        }
    }
}

async fn embeddings(server: &Server, case: &str, golden: &Value) {
    let runner = server.embedder(case).await;
    for (name, sequence) in golden["sequences"].as_object().expect("sequences") {
        let inputs = json!([{"kind": "tokens", "tokens": sequence["input_ids"]}]);
        let (status, answer) = runner.call("embed", &json!({"inputs": inputs, "truncate": false})).await;
        assert_eq!(status, 200, "{case} {name}: {answer}");
        let of = |value: &Value| -> Vec<f64> { list(value).iter().map(|x| x.as_f64().expect("a number")).collect() };
        let (found, expected) = (of(&answer["embeddings"][0]), of(&sequence["embedding"]));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let cosine = dot(&found, &expected) / (dot(&found, &found) * dot(&expected, &expected)).sqrt();
        assert!(cosine > 0.9999, "{case} {name}: a cosine of {cosine}");
    }
}

#[tokio::test]
async fn adapters_of_fused_projections_are_added() {
    const TEST: &str = "cases2026::adapters_of_fused_projections_are_added";
    let (Some(cases), Some(hf)) = (fixtures(TEST, "cases2026"), fixtures(TEST, "hf")) else { return };
    let server = Server::start(&[("LODE_KV_CACHE_TYPE", "f32"), in_float32()]).await;
    server.create("base-phi3", &hf.join("phi3/model")).await;
    let modelfile = cases.join("lora-fused_phi3/Modelfile");
    let output = server.lode(&["create", "adapted", "-f", modelfile.to_str().expect("a path")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let golden = read_json(&cases.join("lora-fused_phi3/golden.json"));
    continuations(&server.runner("adapted").await, "lora-fused_phi3", &golden).await;
}
