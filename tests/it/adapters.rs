//! Low-rank adapters of each format, on models of each format: the logits equal those of a model
//! with merged weights.

mod experts;
mod heads;
mod made;

use std::path::Path;

use content::Digest;
use formats::GgmlType;
use serde_json::{Value, json};

use crate::export::exported;
use crate::maintenance::{done, fails};
use crate::server::{Server, in_float32};
use crate::support::{fixtures, list, read, root, skip, tiny_model};
use crate::whole_gguf::{CONFIG, OLLAMA, push};
use made::{Lora, write};

/// Tokens of the tiny model's vocabulary.
const TOKENS: [u64; 12] = [5, 17, 230, 41, 99, 3, 150, 77, 201, 8, 64, 118];

/// Creates a model with adapters from a Modelfile.
fn adapted(server: &Server, name: &str, from: &str, adapters: &[&Path]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lines: Vec<String> = adapters.iter().map(|adapter| format!("ADAPTER {}\n", adapter.display())).collect();
    write(folder.path(), "Modelfile", format!("FROM {from}\n{}", lines.concat()).as_bytes());
    done(server, &["create", name, "-f", folder.path().join("Modelfile").to_str().expect("a path")]);
}

async fn logits(server: &Server, model: &str) -> Vec<f32> {
    server.runner(model).await.logits(&TOKENS, false).await.concat()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Compares the logits of the tiny model, and of the same model as a GGUF file, with adapters of
/// each format to the logits of merged weights.
async fn compare(environment: &[(&str, &str)], lora: &Lora, most: f32) {
    let server = Server::start(&[environment, &[("LODE_MAX_LOADED_MODELS", "1")]].concat()).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let names = ["peft", "mlx", "lora.gguf", "blocks.gguf", "negated.gguf", "tiny.gguf"];
    let [peft, mlx, gguf, blocks, negated, file] = names.map(|name| place.path().join(name));
    for folder in [&peft, &mlx] {
        std::fs::create_dir(folder).expect("a folder");
    }
    lora.peft(&peft);
    lora.mlx(&mlx);
    lora.gguf(&gguf, GgmlType::F32);
    lora.negated().gguf(&negated, GgmlType::F32);
    let mut adapters = vec![peft.clone(), mlx, gguf];
    if lora.rank.is_multiple_of(32) {
        lora.gguf(&blocks, GgmlType::Q8_0);
        adapters.push(blocks);
    }
    server.create("folder", &tiny_model()).await;
    exported(&server, "folder", &file, &["--format", "gguf", "--lossy"]);
    server.create("file", &file).await;
    server.create("merged", lora.merged().path()).await;

    let expected = logits(&server, "merged").await;
    for base in ["folder", "file"] {
        let without = logits(&server, base).await;
        assert!(distance(&without, &expected) > 30.0 * most, "the adapter changes next to nothing");
        for adapter in &adapters {
            adapted(&server, "adapted", base, &[adapter]);
            let found = distance(&logits(&server, "adapted").await, &expected);
            // The factors in `Q8_0` blocks are rounded.
            let most = if adapter.ends_with("blocks.gguf") { 20.0 * most } else { most };
            assert!(found < most, "{} on {base}: logits differ by {found}", adapter.display());
        }
        // Two adapters that cancel each other.
        adapted(&server, "both", base, &[&peft, &negated]);
        let found = distance(&logits(&server, "both").await, &without);
        assert!(found < most, "an adapter and its opposite on {base}: logits differ by {found}");
    }
}

#[tokio::test]
async fn adapted_models_compute_what_merged_ones_do() {
    compare(&[("LODE_REFERENCE", "1")], &Lora::random(3, 6.0), 1e-3).await;
}

#[tokio::test]
async fn the_kernels_add_adapters_too() {
    compare(&[("LODE_KV_CACHE_TYPE", "f32"), in_float32()], &Lora::random(3, 6.0), 1e-2).await;
    compare(&[("LODE_KV_CACHE_TYPE", "f32"), in_float32()], &Lora::random(32, 20.0), 1e-2).await;
}

#[tokio::test]
async fn models_of_ollama_run_with_theirs() {
    let environment = [("LODE_REFERENCE", "1"), ("LODE_MAX_LOADED_MODELS", "1")];
    let server = Server::start(&environment).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let (file, adapter) = (place.path().join("tiny.gguf"), place.path().join("lora.gguf"));
    let lora = Lora::random(2, 8.0);
    lora.gguf(&adapter, GgmlType::F32);
    server.create("folder", &tiny_model()).await;
    exported(&server, "folder", &file, &["--format", "gguf", "--lossy"]);
    server.create("merged", lora.merged().path()).await;
    let expected = logits(&server, "merged").await;
    let layers = [(file.as_path(), OLLAMA), (adapter.as_path(), "application/vnd.ollama.image.adapter")];
    push(&server, &layers, CONFIG).await;
    let found = distance(&logits(&server, "someone/model").await, &expected);
    assert!(found < 1e-3, "of a whole file: logits differ by {found}");
    // The pull imports the file, so its weights are split into blobs.
    let other = Server::start(&environment).await;
    let name = format!("{}/someone/model", server.address);
    let pulled = other.lines("/api/pull", &json!({"model": name, "insecure": true})).await;
    assert_eq!(pulled.last().map(|line| &line["status"]), Some(&json!("success")), "{pulled:?}");
    let found = distance(&logits(&other, &name).await, &expected);
    assert!(found < 1e-3, "of a split file: logits differ by {found}");
    // Exports of both forms contain the adapter, and the exported folder of the pulled model
    // creates the same model.
    for (server, name, label) in [(&server, "someone/model", "whole"), (&other, name.as_str(), "split")] {
        let to = place.path().join(label);
        let files = exported(server, name, &to, &[]);
        let digest = Digest::of(&read(&adapter));
        assert!(files.values().any(|found| *found == digest), "{label}: {:?}", files.keys());
    }
    for label in ["whole", "split"] {
        other.create("again", &place.path().join(label)).await;
        let found = distance(&logits(&other, "again").await, &expected);
        assert!(found < 1e-3, "of the exported {label} files: logits differ by {found}");
    }
    // An adapter of two files stays one adapter, also if it is pulled from a model of whole files.
    let peft = place.path().join("peft");
    std::fs::create_dir(&peft).expect("a folder");
    lora.peft(&peft);
    push(&server, &layers[..1], CONFIG).await;
    adapted(&server, "pair", "someone/model", &[&peft]);
    let name = format!("{}/library/pair", server.address);
    let pulled = other.lines("/api/pull", &json!({"model": name, "insecure": true})).await;
    assert_eq!(pulled.last().map(|line| &line["status"]), Some(&json!("success")), "{pulled:?}");
    let found = distance(&logits(&other, &name).await, &expected);
    assert!(found < 1e-3, "of a pulled pair: logits differ by {found}");
}

#[tokio::test]
async fn mlx_lm_computes_the_same() {
    const TEST: &str = "adapters::mlx_lm_computes_the_same";
    let Some(python) = std::env::var_os("LODE_TEST_MLX") else {
        return skip(TEST, "LODE_TEST_MLX names no Python with the package `mlx_lm`; scripts/test makes one");
    };
    let Some(model) = fixtures(TEST, "hf/llama/model") else { return };
    let server = Server::start(&[("LODE_REFERENCE", "1")]).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let mut lora = Lora::random(4, 10.0);
    // mlx-lm adapts only the layers. The fixture's layers have the sizes of the tiny model's.
    lora.factors.remove("lm_head");
    lora.mlx(place.path());
    server.create("base", &model).await;
    adapted(&server, "adapted", "base", &[place.path()]);
    let tokens = serde_json::to_string(&TOKENS).expect("JSON");
    let script = root().join("tests/clients/mlx_lm_adapter.py");
    let output = std::process::Command::new(python).arg(script).arg(&model).arg(place.path()).arg(tokens).output();
    let output = output.expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Vec<f32> = serde_json::from_slice(&output.stdout).expect("a list of numbers");
    let (found, base) = (logits(&server, "adapted").await, logits(&server, "base").await);
    assert!(distance(&base, &expected) > 0.5, "the adapter changes next to nothing");
    let found = distance(&found, &expected);
    assert!(found < 2e-3, "logits differ by {found}");
}

/// Uploads a file and returns its digest.
async fn sent(server: &Server, path: &Path) -> String {
    let (bytes, digest) = (read(path), Digest::of(&read(path)).to_string());
    let answer = server.http.post(server.url(&format!("/api/blobs/{digest}"))).body(bytes).send().await;
    assert_eq!(answer.expect("the daemon answers").status().as_u16(), 201);
    digest
}

#[tokio::test]
async fn an_adapter_stays_with_its_model() {
    let server = Server::start(&[]).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let folder = place.path();
    Lora::random(2, 8.0).peft(folder);
    server.create("base", &tiny_model()).await;
    let (weights, config) = (folder.join("adapter_model.safetensors"), folder.join("adapter_config.json"));
    let adapters = json!({
        "adapter_model.safetensors": sent(&server, &weights).await,
        "adapter_config.json": sent(&server, &config).await,
    });
    let request = json!({"model": "adapted", "from": "base", "adapters": adapters, "stream": false});
    server.ask("/api/create", &request).await;
    server.ask("/api/create", &json!({"model": "later", "from": "adapted", "system": "Hi.", "stream": false})).await;
    let text = |model: &str| json!({"model": model, "prompt": "once", "raw": true, "stream": false, "options": {"temperature": 0, "num_predict": 12}});
    let answer = |answer: Value| answer["response"].as_str().expect("text").to_owned();
    let expected = answer(server.ask("/api/generate", &text("adapted")).await);
    assert_ne!(answer(server.ask("/api/generate", &text("base")).await), expected);
    assert_eq!(answer(server.ask("/api/generate", &text("later")).await), expected);

    let shown = server.ask("/api/show", &json!({"model": "later"})).await;
    let modelfile = shown["modelfile"].as_str().expect("a Modelfile");
    assert!(modelfile.contains("# ADAPTER adapters/0/adapter_model.safetensors@sha256:"), "{modelfile}");
    // A quantized copy keeps the adapter.
    server
        .ask("/api/create", &json!({"model": "small", "from": "adapted", "quantize": "int8:32", "stream": false}))
        .await;
    let base = server.ask("/api/show", &json!({"model": "small"})).await;
    assert!(base["modelfile"].as_str().is_some_and(|text| text.contains("# ADAPTER adapters/0/")), "{base}");

    // A second adapter with the same file names gets another folder; an export contains both.
    adapted(&server, "twice", "adapted", &[folder]);
    let to = folder.join("out");
    let files = exported(&server, "twice", &to, &[]);
    for (number, file) in [(0, &weights), (1, &weights), (0, &config), (1, &config)] {
        let name = format!("adapters/{number}/{}", file.file_name().expect("a name").to_string_lossy());
        assert_eq!(files.get(&name), Some(&Digest::of(&read(file))), "{name} of {:?}", files.keys());
    }
    let to = folder.join("other");
    fails(
        &server,
        &["export", "twice", "--to", to.to_str().expect("a path"), "--format", "safetensors"],
        "adapter is not merged",
    );

    // The exported folder creates the same model.
    server.create("again", &folder.join("out")).await;
    let plain = server.ask("/api/generate", &text("twice")).await["response"].clone();
    assert_eq!(server.ask("/api/generate", &text("again")).await["response"], plain);

    // The memory plan includes the adapter.
    let weights = |plan: &Value| plan["exact"]["weights"].as_u64().expect("bytes");
    let plan = |model: &str| json!({"model": model});
    let more = weights(&server.ask("/api/lode/plan", &plan("adapted")).await)
        - weights(&server.ask("/api/lode/plan", &plan("base")).await);
    assert_eq!(more, (read(&folder.join("adapter_model.safetensors")).len() + read(&config).len()) as u64);
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one case after the other")]
async fn what_cannot_be_used_is_refused() {
    let server = Server::start(&[]).await;
    server.create("base", &tiny_model()).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let folder = place.path();
    let made = |name: &str| {
        let own = folder.join(name);
        std::fs::create_dir(&own).expect("a folder");
        Lora::random(2, 8.0).peft(&own);
        own
    };
    let configured = |name: &str, config: &Value| {
        let own = made(name);
        write(&own, "adapter_config.json", config.to_string().as_bytes());
        own
    };
    let renamed = |name: &str, from: &str, to: &str| {
        let (mut lora, own) = (Lora::random(2, 8.0), made(name));
        let factors = lora.factors.remove(from).expect("a module");
        lora.factors.insert(to.to_owned(), factors);
        lora.peft(&own);
        own
    };
    let alone = made("alone");
    std::fs::remove_file(alone.join("adapter_config.json")).expect("removal");
    let cut = made("cut");
    let half = read(&cut.join("adapter_model.safetensors"));
    write(&cut, "adapter_model.safetensors", &half[..half.len() / 2]);
    let pickle = folder.join("pickle");
    std::fs::create_dir(&pickle).expect("a folder");
    write(&pickle, "adapter_model.bin", b"PK");
    let model = folder.join("model.gguf");
    exported(&server, "base", &model, &["--format", "gguf", "--lossy"]);
    let layer = "model.layers.0.self_attn.q_proj";
    for (adapter, says) in [
        (folder.join("absent"), "cannot find"),
        (pickle, "pickle"),
        (alone, "`adapter_config.json`, which has the scale, is missing"),
        (cut, "the file was cut"),
        (model, "it is a model, which FROM names"),
        (configured("dora", &json!({"lora_alpha": 1, "use_dora": true})), "`use_dora` is set"),
        (configured("kind", &json!({"peft_type": "IA3"})), "`IA3`, expected `LORA`"),
        (configured("silent", &json!({})), "`lora_alpha` is missing"),
        (configured("pattern", &json!({"lora_alpha": 1, "alpha_pattern": {"(": 2}})), "is no pattern"),
        (configured("text", &json!("x")), "cannot be read"),
        (renamed("module", layer, "model.layers.0.self_attn.z_proj"), "has no `model.layers.0.self_attn.z_proj`"),
        (renamed("layer", layer, "model.layers.9.self_attn.q_proj"), "has no `model.layers.9"),
        (renamed("shape", layer, "model.layers.0.self_attn.k_proj"), "[64, 64], that of the model [32, 64]"),
        (configured("tokens", &json!({"lora_alpha": 1, "alora_invocation_tokens": [1]})), "(aLoRA)"),
        (renamed("embedding", "lm_head", "model.embed_tokens"), "token embedding"),
    ] {
        let modelfile = format!("FROM base\nADAPTER {}\n", adapter.display());
        write(folder, "Modelfile", modelfile.as_bytes());
        fails(&server, &["create", "adapted", "-f", folder.join("Modelfile").to_str().expect("a path")], says);
    }
    write(folder, "bad.gguf", b"no adapter at all");
    let here = sent(&server, &folder.join("bad.gguf")).await;
    for (name, digest, says) in [
        ("x.gguf", format!("sha256:{}", "0".repeat(64)), "not found; upload it first"),
        ("x.gguf", "nothing".to_owned(), "`x.gguf`"),
        ("../x.gguf", here.clone(), "goes up"),
        ("x.gguf", here.clone(), "GGUF"),
        ("x.md", here.clone(), "no adapter found in `x.md`"),
        ("x.bin", here, "`x.bin`"),
    ] {
        let request = json!({"model": "adapted", "from": "base", "adapters": {name: digest}, "stream": false});
        let (status, answer) = server.call("/api/create", &request).await;
        assert_eq!(status, 400, "{name} {digest}: {answer}");
        assert!(answer.to_string().contains(says), "{answer} should say {says}");
    }
    let alone = folder.join("dora");
    fails(&server, &["create", "adapted", "-f", alone.to_str().expect("a path")], "this is an adapter, not a model");
    let answer = server.http.get(server.url("/api/tags")).send().await.expect("the daemon answers");
    let models: Value = answer.json().await.expect("JSON");
    assert_eq!(list(&models["models"]).len(), 1, "{models}");
}
