//! Tiny models compared with Hugging Face transformers: logits, greedy continuations, tokens,
//! rendered prompts.

use std::path::Path;

use formats::safetensors::Header;
use serde_json::{Value, json};

use crate::server::{Runner, Server, in_float32};
use crate::support::{fixtures, json as read_json, list, numbers, read};

/// The largest difference of a logit, from the fixtures' README.
const TOLERANCE: f32 = 2e-3;

/// Returns the fixtures of a kind, by name.
fn named(hf: &Path, kind: &str) -> Vec<(String, Value)> {
    let manifest = read_json(&hf.join("manifest.json"));
    let fixtures = manifest["fixtures"].as_object().expect("fixtures").clone();
    fixtures.into_iter().filter(|(_, facts)| (facts["kind"] == "embedding") == (kind == "embedding")).collect()
}

#[tokio::test]
async fn every_decoder() {
    let Some(hf) = fixtures("fixture_models::every_decoder", "hf") else { return };
    // The reference values come from a float32 KV cache.
    let server = Server::start(&[("LODE_KV_CACHE_TYPE", "f32"), in_float32()]).await;
    let all = named(&hf, "decoder");
    assert!(all.len() >= 38, "{}", all.len());
    // Integer products round the activations; the reference mode does not use them.
    let reference = Server::start(&[("LODE_REFERENCE", "1")]).await;
    for (name, facts) in all {
        let server = if name.ends_with("mxfp4") { &reference } else { &server };
        check(server, &hf, &name, facts["tokenizer"].as_str().expect("a tokenizer")).await;
    }
}

/// With the fastest instructions of the machine, the logits keep their direction, measured as
/// cosine similarity, despite the rounding.
#[tokio::test]
async fn the_best_instructions_point_the_same_way() {
    let Some(hf) = fixtures("fixture_models::the_best_instructions_point_the_same_way", "hf") else { return };
    let server = Server::start(&[]).await;
    for (name, least) in [("llama", 0.999), ("gemma3_text", 0.999), ("qwen3-fp8", 0.999), ("gpt_oss-mxfp4", 0.99)] {
        let fixture = hf.join(name);
        server.create(name, &fixture.join("model")).await;
        let (runner, facts) = (server.runner(name).await, read_json(&fixture.join("golden.json")));
        for sequence in ["s5", "s37", "s100"] {
            let expected = golden(&fixture, &format!("logits.{sequence}"));
            let tokens = numbers(&facts["sequences"][sequence]["input_ids"]);
            let found = runner.logits(&tokens, false).await;
            let rows = found.iter().zip(expected.chunks_exact(expected.len() / tokens.len()));
            let mut cosines: Vec<f64> = rows.map(|(row, expected)| cosine(row, expected)).collect();
            assert_eq!(cosines.len(), tokens.len());
            assert!(cosines.iter().all(|cosine| cosine.is_finite()), "{name} {sequence}: {cosines:?}");
            cosines.sort_by(f64::total_cmp);
            let median = cosines[cosines.len() / 2];
            assert!(median >= least, "{name} {sequence}: a median cosine of {median:.5}");
        }
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[tokio::test]
async fn every_encoder() {
    let Some(hf) = fixtures("fixture_models::every_encoder", "hf") else { return };
    let server = Server::start(&[in_float32()]).await;
    let all = named(&hf, "embedding");
    assert!(all.len() >= 4, "{}", all.len());
    for (name, _) in all {
        embeddings(&server, &hf, &name).await;
    }
}

/// Compares a model end to end: import, blobs, load plan, runner. The runner's own tests compare
/// both backends and both layouts of configs with the same values.
async fn check(server: &Server, hf: &Path, name: &str, tokenizer: &str) {
    let fixture = hf.join(name);
    server.create(name, &fixture.join("model")).await;
    let runner = server.runner(name).await;
    logits(&runner, &fixture).await;
    continuations(&runner, &fixture).await;
    let golden = read_json(&hf.join("_tokenizers").join(format!("{tokenizer}.json")));
    tokens(&runner, &golden).await;
    rendered(&runner, &golden, &read_json(&hf.join("chat_cases.json"))).await;
    server.ask("/api/generate", &json!({"model": name, "keep_alive": 0, "stream": false})).await;
}

/// Compares embeddings of texts, as a batch and one by one. A model that only embeds refuses to
/// generate.
async fn embeddings(server: &Server, hf: &Path, name: &str) {
    let fixture = hf.join(name);
    server.create(name, &fixture.join("model")).await;
    let facts = read_json(&fixture.join("golden.json"));
    let texts: Value = list(&facts["texts"]).iter().map(|text| text["text"].clone()).collect();
    let expected = golden(&fixture, "embeddings");
    let width = expected.len() / list(&texts).len();
    let (status, all) = server.call("/api/embed", &json!({"model": name, "input": texts})).await;
    assert_eq!(status, 200, "{all}");
    for ((text, vector), expected) in
        list(&texts).iter().zip(list(&all["embeddings"])).zip(expected.chunks_exact(width))
    {
        let (_, alone) = server.call("/api/embed", &json!({"model": name, "input": text})).await;
        for vector in [vector, &alone["embeddings"][0]] {
            let cosine: f64 =
                list(vector).iter().zip(expected).map(|(a, b)| a.as_f64().expect("a number") * f64::from(*b)).sum();
            assert!(cosine > 0.99999, "{name}, {text}: {cosine}");
        }
    }
    if name != "qwen3-embedding" {
        let (status, refusal) =
            server.call("/api/generate", &json!({"model": name, "prompt": "x", "stream": false})).await;
        assert_eq!(status, 400, "{refusal}");
        assert!(refusal["error"].as_str().expect("an error").contains("does not support generate"), "{refusal}");
    }
}

/// A model whose config has the newer layout, in the reference mode.
#[tokio::test]
async fn the_newer_layout_in_the_reference_mode() {
    let Some(hf) = fixtures("the_newer_layout_in_the_reference_mode", "hf") else { return };
    let fixture = hf.join("llama-tied-rope3");
    let server = Server::start(&[("LODE_REFERENCE", "1")]).await;
    let newer = with_config(&fixture);
    server.create("m", newer.path()).await;
    let runner = server.runner("m").await;
    logits(&runner, &fixture).await;
    continuations(&runner, &fixture).await;
}

/// Copies the model with its config in the newer layout.
fn with_config(fixture: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for entry in std::fs::read_dir(fixture.join("model")).expect("a model") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("a copy");
    }
    let config = folder.path().join("config.json");
    std::fs::remove_file(&config).expect("a config");
    std::fs::copy(fixture.join("config_v5.json"), config).expect("a config");
    folder
}

/// Returns a float32 tensor of the reference values.
pub(crate) fn golden(fixture: &Path, name: &str) -> Vec<f32> {
    let raw = read(&fixture.join("golden.safetensors"));
    let header = Header::parse(&raw, raw.len() as u64).expect("golden tensors");
    let tensor = header.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
    let at = usize::try_from(header.data_start + tensor.begin).expect("small");
    let size = usize::try_from(tensor.size()).expect("small");
    raw[at..at + size].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn has_golden(fixture: &Path, name: &str) -> bool {
    let raw = read(&fixture.join("golden.safetensors"));
    Header::parse(&raw, raw.len() as u64).expect("golden tensors").tensor(name).is_some()
}

async fn logits(runner: &Runner, fixture: &Path) {
    let facts = read_json(&fixture.join("golden.json"));
    for sequence in ["s5", "s37", "s100"] {
        let all = format!("logits.{sequence}");
        let all = if has_golden(fixture, &all) { all } else { format!("last_{all}") };
        let expected = golden(fixture, &all);
        let tokens = numbers(&facts["sequences"][sequence]["input_ids"]);
        for stepwise in [false, true] {
            let actual: Vec<f32> = runner.logits(&tokens, stepwise).await.concat();
            let actual = &actual[actual.len() - expected.len()..];
            let worst = actual.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= TOLERANCE, "{sequence} of {}: off by {worst}", fixture.display());
        }
    }
}

async fn continuations(runner: &Runner, fixture: &Path) {
    let facts = read_json(&fixture.join("golden.json"));
    for sequence in ["s5", "s37", "s100"] {
        let golden = &facts["sequences"][sequence];
        let expected = numbers(&golden["greedy_ids"]);
        let (ids, text) = runner.greedy(&numbers(&golden["input_ids"]), expected.len()).await;
        assert_eq!(ids, expected, "{sequence} of {}", fixture.display());
        assert!(!text.is_empty());
    }
    let early = &facts["stops_early"];
    if early.is_object() {
        let stops = numbers(&early["stop_token_ids"]);
        let expected: Vec<u64> = numbers(&early["greedy_ids"]).into_iter().filter(|id| !stops.contains(id)).collect();
        let (ids, _) = runner.greedy(&numbers(&early["input_ids"]), 48).await;
        assert_eq!(ids, expected, "stops early, {}", fixture.display());
    }
}

async fn tokens(runner: &Runner, golden: &Value) {
    for case in list(&golden["cases"]) {
        let text = case["text"].as_str().expect("text");
        assert_eq!(runner.tokenize(text, false, true).await, numbers(&case["ids"]), "{text:?}");
        let special = numbers(&case["ids_with_special_tokens"]);
        assert_eq!(runner.tokenize(text, true, true).await, special, "{text:?} with special tokens");
        assert_eq!(runner.detokenize(&case["ids"]).await, case["decoded"], "{text:?} decoded");
    }
}

async fn rendered(runner: &Runner, golden: &Value, cases: &Value) {
    let mut checked = 0;
    for case in list(&golden["chat"]["cases"]) {
        let conversation = &cases[case["messages"].as_str().expect("a name")];
        let request = json!({
            "messages": conversation["messages"],
            "tools": conversation["tools"],
            "add_generation_prompt": case["add_generation_prompt"],
            "variables": case.get("variables").cloned().unwrap_or_else(|| json!({})),
        });
        let (status, answer) = runner.call("render", &request).await;
        if let Some(error) = case["error"].as_str() {
            let said = error.trim_start_matches("TemplateError: ");
            assert_eq!(status, 400, "{case}: {answer}");
            assert!(answer["error"].as_str().expect("an error").contains(said), "{answer} should say {said}");
        } else {
            assert_eq!(answer["text"], case["rendered"], "{}", case["messages"]);
            let text = case["rendered"].as_str().expect("text");
            assert_eq!(runner.tokenize(text, false, true).await, numbers(&case["ids"]), "{text:?}");
        }
        checked += 1;
    }
    // Some models have no template.
    assert!(checked > 5 || golden["chat"]["template"].is_null(), "only {checked} chat cases");
}
