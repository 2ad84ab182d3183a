//! Exports to another format: a second import gives the same model.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{copied, exported, text};
use crate::maintenance::{done, fails};
use crate::server::Server;
use crate::stored::created;
use crate::support::{entries, fixtures, json, list, name, object, read, root, skip, tiny_model};

/// Returns the digests of a model's tensor blobs, by layer name.
fn tensors(server: &Server, model: &str) -> BTreeMap<String, String> {
    let layers = created(&server.home(), model).json["layers"].clone();
    let is_tensor = |layer: &&Value| layer["mediaType"] == "application/vnd.ollama.image.tensor";
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    list(&layers).iter().filter(is_tensor).map(|layer| (text(&layer["name"]), text(&layer["digest"]))).collect()
}

/// Returns the header of a safetensors file.
fn header(path: &Path) -> Value {
    let bytes = read(path);
    let length = u64::from_le_bytes(*bytes.first_chunk::<8>().expect("a length"));
    serde_json::from_slice(&bytes[8..8 + usize::try_from(length).expect("small")]).expect("JSON")
}

#[tokio::test]
async fn a_float_model_is_the_same_after_any_sharding() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    let expect = tensors(&server, "m");
    let place = tempfile::tempdir().expect("a temporary folder");
    for (number, size) in ["5GB", "100KB", "1"].into_iter().enumerate() {
        let to = place.path().join(number.to_string());
        let files = exported(&server, "m", &to, &["--format", "safetensors", "--shard-size", size]);
        let shards = files.keys().filter(|name| name.ends_with(".safetensors")).count();
        let index = to.join("model.safetensors.index.json");
        assert_eq!(index.exists(), shards > 1);
        if shards > 1 {
            let index = json(&index);
            assert_eq!(object(&index["weight_map"]).len(), expect.len());
            let last = format!("model-{shards:05}-of-{shards:05}.safetensors");
            assert!(files.contains_key(&last), "{last} of {files:?}");
        }
        assert_eq!((shards == 1, shards == expect.len()), (size == "5GB", size == "1"), "{shards} shards of {size}");
        let first = files.keys().find(|name| name.ends_with(".safetensors")).expect("a shard");
        assert_eq!(header(&to.join(first))["__metadata__"]["format"], "pt");
        server.create("again", &to).await;
        assert_eq!(tensors(&server, "again"), expect, "{size}");
        assert_eq!(read(&to.join("config.json")), read(&tiny_model().join("config.json")));
    }
    // An MLX export of a float model is the same folder, except for the `format` label.
    let to = place.path().join("mlx");
    exported(&server, "m", &to, &["--format", "mlx"]);
    assert_eq!(header(&to.join("model.safetensors"))["__metadata__"]["format"], "mlx");
    server.create("again", &to).await;
    assert_eq!(tensors(&server, "again"), expect);
}

#[tokio::test]
async fn hugging_face_models_are_the_same_after_an_export() {
    let Some(folder) = fixtures("export::conversions::hugging_face_models_are_the_same_after_an_export", "hf") else {
        return;
    };
    let server = Server::start(&[]).await;
    for model in ["llama", "qwen3_moe", "granite", "mixtral", "gemma3_text"] {
        server.create("m", &folder.join(model).join("model")).await;
        let to = tempfile::tempdir().expect("a temporary folder");
        exported(&server, "m", to.path(), &["--format", "safetensors", "--shard-size", "200KB"]);
        server.create("again", to.path()).await;
        assert_eq!(tensors(&server, "again"), tensors(&server, "m"), "{model}");
    }
}

#[tokio::test]
async fn mlx_models_are_the_same_after_an_export() {
    let Some(folder) = fixtures("export::conversions::mlx_models_are_the_same_after_an_export", "mlx") else { return };
    let server = Server::start(&[]).await;
    for model in entries(&folder).into_iter().filter(|path| path.is_dir()) {
        let source = copied(&model);
        server.create("m", source.path()).await;
        let to = tempfile::tempdir().expect("a temporary folder");
        exported(&server, "m", to.path(), &["--format", "mlx"]);
        let what = name(&model);
        assert_eq!(read(&to.path().join("config.json")), read(&model.join("config.json")), "{what}");
        let (own, theirs) = (header(&to.path().join("model.safetensors")), header(&model.join("model.safetensors")));
        let described = |header: &Value| -> BTreeMap<String, Value> {
            let tensors = object(header).iter().filter(|(name, _)| *name != "__metadata__");
            tensors.map(|(name, entry)| (name.clone(), serde_json::json!([entry["dtype"], entry["shape"]]))).collect()
        };
        assert_eq!(described(&own), described(&theirs), "{what}");
        let index = model.join("model.safetensors.index.json");
        if index.exists() {
            assert_eq!(json(&to.path().join("model.safetensors.index.json")), json(&index), "{what}");
        }
        server.create("again", to.path()).await;
        assert_eq!(tensors(&server, "again"), tensors(&server, "m"), "{what}");
    }
}

#[tokio::test]
async fn mlx_lm_loads_what_was_exported() {
    const TEST: &str = "export::conversions::mlx_lm_loads_what_was_exported";
    let Some(folder) = fixtures(TEST, "mlx") else { return };
    let Some(python) = std::env::var_os("LODE_TEST_MLX") else {
        return skip(TEST, "LODE_TEST_MLX names no Python with the package `mlx_lm`; scripts/test makes one");
    };
    let server = Server::start(&[]).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let mut pairs = Vec::new();
    for model in entries(&folder).into_iter().filter(|path| path.is_dir()) {
        server.create("m", copied(&model).path()).await;
        let to = place.path().join(name(&model));
        exported(&server, "m", &to, &["--format", "mlx"]);
        pairs.extend([to, model]);
    }
    assert!(!pairs.is_empty(), "no models in `{}`", folder.display());
    let script = root().join("tests/clients/mlx_lm_export.py");
    let output = std::process::Command::new(python).arg(script).args(pairs).output().expect("Python runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ok", "{error}");
}

#[tokio::test]
async fn losses_are_told_before_they_happen() {
    let server = Server::start(&[]).await;
    server.create("m", &tiny_model()).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let to = place.path().join("out");
    let to = text(&to);
    let request = serde_json::json!({"model": "s", "from": "m", "system": "Be brief.", "stream": false});
    server.ask("/api/create", &request).await;
    fails(&server, &["export", "s", "--to", to, "--format", "safetensors"], "the system prompt is not in these files");
    done(&server, &["export", "s", "--to", to, "--format", "safetensors", "--lossy"]);
    std::fs::remove_dir_all(to).expect("removal");
    done(&server, &["export", "s", "--to", to]);
    for (arguments, says) in [
        (&["--dtype", "f32"][..], "`--dtype` is for"),
        (&["--shard-size", "5GB"], "`--shard-size` is for"),
        (&["--format", "mlx", "--dtype", "f16"], "`--dtype` is for"),
        (&["--format", "safetensors", "--shard-size", "0"], "not a number of bytes"),
        (&["--format", "safetensors", "--shard-size", "5 parrots"], "not a number of bytes"),
    ] {
        fails(&server, &[&["export", "m", "--to", to], arguments].concat(), says);
    }
}

/// Returns the greedy continuation of a few tokens.
async fn greedy(server: &Server, model: &str, tokens: &[u64], most: usize) -> Vec<u64> {
    server.runner(model).await.greedy(tokens, most).await.0
}

#[tokio::test]
async fn a_folder_is_the_same_after_being_a_gguf_file() {
    let test = "export::conversions::a_folder_is_the_same_after_being_a_gguf_file";
    let Some(folder) = fixtures(test, "hf/llama/model") else { return };
    let server = Server::start(&[("LODE_REFERENCE", "1")]).await;
    server.create("m", &folder).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let (file, back) = (place.path().join("m.gguf"), place.path().join("back"));
    exported(&server, "m", &file, &["--format", "gguf", "--lossy"]);
    server.create("file", &file).await;
    exported(&server, "file", &back, &["--format", "safetensors", "--lossy"]);
    server.create("back", &back).await;
    // One-dimensional tensors are float32 in a GGUF file and stay float32; the bytes of matrices
    // are the original ones.
    let (expect, found) = (tensors(&server, "m"), tensors(&server, "back"));
    let matrices = expect.iter().filter(|(name, _)| !name.contains("norm") && name.strip_suffix(".bias").is_none());
    for (name, digest) in matrices {
        assert_eq!(found.get(name), Some(digest), "{name}");
    }
    assert_eq!(found.keys().collect::<Vec<_>>(), expect.keys().collect::<Vec<_>>());
    let tokens = [1, 5, 9, 33, 4];
    let expect = greedy(&server, "m", &tokens, 12).await;
    for model in ["file", "back"] {
        assert_eq!(greedy(&server, model, &tokens, 12).await, expect, "{model}");
    }
}

#[tokio::test]
async fn a_real_model_says_the_same_when_it_is_expanded() {
    let test = "export::conversions::a_real_model_says_the_same_when_it_is_expanded";
    let Some((golden, file)) = crate::smollm2::inputs(test) else { return };
    let server = Server::start(&[("LODE_REFERENCE", "1")]).await;
    server.create("m", &file).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let to = place.path().join("out");
    fails(&server, &["export", "m", "--to", text(&to), "--format", "safetensors"], "are rounded from Q4_1 to BF16");
    assert!(!to.exists());
    exported(&server, "m", &to, &["--format", "safetensors", "--dtype", "f32", "--shard-size", "200MB", "--lossy"]);
    server.create("expanded", &to).await;
    let tokens = &crate::support::numbers(&golden["perplexity"]["ids"])[..24];
    assert_eq!(greedy(&server, "expanded", tokens, 16).await, greedy(&server, "m", tokens, 16).await);
}

#[tokio::test]
async fn quantized_models_of_mlx_are_expanded() {
    let Some(folder) = fixtures("export::conversions::quantized_models_of_mlx_are_expanded", "mlx") else { return };
    let server = Server::start(&[("LODE_REFERENCE", "1")]).await;
    for (model, exact) in [
        ("tiny-llama-mixed", &["--dtype", "f32"][..]),
        ("tiny-llama-nvfp4", &[]),
        ("tiny-llama-mxfp4", &[]),
        ("tiny-llama-mxfp8", &[]),
    ] {
        server.create("m", copied(&folder.join(model)).path()).await;
        let to = tempfile::tempdir().expect("a temporary folder");
        exported(&server, "m", to.path(), &[&["--format", "safetensors"], exact].concat());
        let config = json(&to.path().join("config.json"));
        assert!(config.get("quantization").or(config.get("quantization_config")).is_none(), "{model}: {config}");
        server.create("expanded", to.path()).await;
        let tokens = [3, 17, 99, 4, 56];
        assert_eq!(greedy(&server, "expanded", &tokens, 8).await, greedy(&server, "m", &tokens, 8).await, "{model}");
    }
}
