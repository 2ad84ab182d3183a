//! Tests with adapters of each format, and with files that are not adapters.

use std::sync::Arc;

use formats::gguf::{NewTensor, OwnedValue, write_header};
use formats::safetensors::{Member, canonical_header};
use formats::{Dtype, GgmlType};

use super::*;
use crate::read_at::InMemory;

fn file(name: &str, bytes: Vec<u8>) -> NamedFile {
    NamedFile { name: name.to_owned(), source: Arc::new(InMemory(bytes)) }
}

/// Returns a safetensors file of float16 tensors that are all zero.
fn tensors(names: &[(&str, [u64; 2])]) -> Vec<u8> {
    let member = |(name, shape): &(&str, [u64; 2])| Member {
        name: (*name).to_owned(),
        dtype: Dtype::F16,
        shape: shape.to_vec(),
        size: 2 * shape[0] * shape[1],
    };
    let members: Vec<Member> = names.iter().map(member).collect();
    let mut bytes = canonical_header(&members, &BTreeMap::new());
    bytes.resize(bytes.len() + members.iter().map(|member| member.size as usize).sum::<usize>(), 0);
    bytes
}

/// Returns a GGUF file of one module of rank 4.
fn gguf(keys: &[(&str, OwnedValue)]) -> Vec<u8> {
    let keys: Vec<(String, OwnedValue)> = keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    let tensor =
        |name: &str, dims: [u64; 2]| NewTensor { name: name.to_owned(), kind: GgmlType::F16, dims: dims.to_vec() };
    let new = [tensor("blk.3.attn_v.weight.lora_a", [16, 4]), tensor("blk.3.attn_v.weight.lora_b", [4, 8])];
    let header = write_header(&keys, &new).expect("a header");
    let mut bytes = header.bytes;
    bytes.resize(bytes.len() + header.data_size as usize, 0);
    bytes
}

fn lora_keys(alpha: f32) -> Vec<(&'static str, OwnedValue)> {
    vec![
        ("general.architecture", "llama".into()),
        ("general.type", "adapter".into()),
        ("adapter.type", "lora".into()),
        ("adapter.lora.alpha", alpha.into()),
    ]
}

const Q: &str = "model.layers.0.self_attn.q_proj";
const V: &str = "model.layers.11.self_attn.v_proj";

fn peft(config: &str) -> Result<Adapter, Error> {
    let name = |module: &str, factor: &str| format!("base_model.model.{module}.{factor}.weight");
    // Newer files contain the adapter's name in the tensor names.
    let names = [name(Q, "lora_A"), name(Q, "lora_B"), name(V, "lora_A.default"), name(V, "lora_B.default")];
    let shapes = [[4, 16], [8, 4], [16, 16], [8, 16]];
    let named: Vec<(&str, [u64; 2])> = names.iter().map(String::as_str).zip(shapes).collect();
    let files = [file("x/adapter_model.safetensors", tensors(&named)), file("x/adapter_config.json", config.into())];
    adapters(&files).map(|mut adapters| adapters.remove(0))
}

#[test]
fn peft_scales_by_rank_and_pattern() {
    for (config, expect) in [
        (r#"{"lora_alpha": 8}"#, [2.0, 0.5]),
        (r#"{"lora_alpha": 8, "use_rslora": true}"#, [4.0, 2.0]),
        (r#"{"lora_alpha": 8, "alpha_pattern": {"v_proj": 32}}"#, [2.0, 2.0]),
        (r#"{"lora_alpha": 8, "alpha_pattern": {"layers\\.0\\..*": 4, "proj": 1}}"#, [1.0, 0.5]),
        (
            r#"{"lora_alpha": 8, "alpha_pattern": {"v_proj": 32, "layers.11.self_attn.v_proj": 1, "q_proj": 4}}"#,
            [1.0, 2.0],
        ),
        (r#"{"lora_alpha": 8, "alpha_pattern": {"model\\.layers\\.\\d+\\.\\w+\\.[qk]_proj": 4}}"#, [1.0, 0.5]),
        (r#"{"lora_alpha": 8, "alpha_pattern": null, "use_dora": false, "peft_type": "LORA"}"#, [2.0, 0.5]),
    ] {
        let adapter = peft(config).expect(config);
        let found: Vec<(&str, f64)> =
            adapter.modules.iter().map(|module| (module.name.as_str(), module.scale)).collect();
        assert_eq!(found, [(Q, expect[0]), (V, expect[1])], "{config}");
        assert_eq!((adapter.layout, adapter.architecture), (None, None));
    }
}

#[test]
fn peft_may_do_what_cannot_be_followed() {
    for (config, says) in [
        (r#"{"lora_alpha": 8, "alora_invocation_tokens": [1, 2]}"#, "aLoRA"),
        (r#"{"lora_alpha": 8, "layer_replication": [[0, 4], [2, 5]]}"#, "`layer_replication`"),
        (r#"{"lora_alpha": 8, "init_lora_weights": "pissa_niter_4"}"#, "`pissa_niter_4`"),
        (r#"{"lora_alpha": 8, "init_lora_weights": "olora"}"#, "`olora`"),
        (r#"{"lora_alpha": 8, "alpha_pattern": {"q_proj": "x"}}"#, "has no number"),
        (r#"{"lora_alpha": 8, "alpha_pattern": {"\\w{9999}": 1}}"#, "is too large a pattern"),
    ] {
        let error = peft(config).expect_err(config).to_string();
        assert!(error.contains(says), "`{error}` should say `{says}`");
    }
    for begun in ["true", r#""gaussian""#, r#""eva""#, "null"] {
        peft(&format!(r#"{{"lora_alpha": 8, "alora_invocation_tokens": null, "init_lora_weights": {begun}}}"#))
            .expect(begun);
    }
}

#[test]
fn gguf_scales_by_alpha() {
    for (alpha, scale) in [(8.0, 2.0), (0.0, 1.0), (-2.0, -0.5)] {
        let found = adapters(&[file("lora.gguf", gguf(&lora_keys(alpha)))]).expect("an adapter").remove(0);
        assert_eq!((found.layout, found.architecture.as_deref()), (Some(HeadLayout::Interleaved), Some("llama")));
        let [module] = found.modules.as_slice() else { panic!("one module") };
        assert_eq!((module.name.as_str(), module.scale), ("model.layers.3.self_attn.v_proj", scale));
        assert_eq!((module.sizes(), module.transposed), ((16, 8), false));
    }
}

#[test]
fn mlx_stores_the_other_way_round() {
    let names = [("model.layers.0.mlp.up_proj.lora_a", [16, 4]), ("model.layers.0.mlp.up_proj.lora_b", [4, 8])];
    let config = r#"{"fine_tune_type": "lora", "lora_parameters": {"rank": 4, "scale": 20.0}}"#;
    let files = |config: &str| [file("adapters.safetensors", tensors(&names)), file(CONFIG, config.into())];
    let found = adapters(&files(config)).expect("an adapter").remove(0);
    let module = &found.modules[0];
    assert_eq!((module.sizes(), module.transposed, module.scale), ((16, 8), true, 20.0));
    for (config, says) in [
        (r#"{"fine_tune_type": "dora", "lora_parameters": {"scale": 1}}"#, "`dora`"),
        (r#"{"lora_parameters": {"rank": 4}}"#, "`lora_parameters.scale` is missing"),
    ] {
        let error = adapters(&files(config)).expect_err(config).to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn files_that_are_none_are_refused_by_name() {
    let config = || file(CONFIG, br#"{"lora_alpha": 8}"#.to_vec());
    let weights = |names: &[(&str, [u64; 2])]| [file("w.safetensors", tensors(names)), config()];
    let with = |key: &'static str, value: &str| {
        let mut keys = lora_keys(1.0);
        keys.retain(|(other, _)| *other != key);
        keys.push((key, value.into()));
        vec![file("lora.gguf", gguf(&keys))]
    };
    for (files, says) in [
        (with("general.type", "model"), "it is a model"),
        (with("adapter.type", "control"), "`control`, expected `lora`"),
        (with("adapter.lora.alpha", "text"), "`adapter.lora.alpha` is not a number"),
        (with("adapter.alora.invocation_tokens", "x"), "aLoRA"),
        (vec![file("notes.txt", Vec::new())], "no file of an adapter"),
        (vec![config()], "safetensors file that it is about is missing"),
        (vec![file("../x.gguf", Vec::new())], "goes up"),
        (vec![file("x.gguf", b"GGUF".to_vec())], "not a readable GGUF file"),
        (weights(&[]).to_vec(), "no low-rank factors"),
        (weights(&[("a.lora_A.weight", [4, 16])]).to_vec(), "one of the two factors of `a`"),
        (weights(&[("a.lora_A.weight", [4, 16]), ("a.lora_B.weight", [8, 3])]).to_vec(), "ranks 4 and 3"),
        (
            weights(&[("a.lora_A.weight", [4, 16]), ("a.lora_A.b.weight", [4, 16])]).to_vec(),
            "two tensors for one factor",
        ),
        (weights(&[("a.lora_A.weight", [0, 16]), ("a.lora_B.weight", [8, 0])]).to_vec(), "expected a matrix"),
        (weights(&[("a.lora_A.weight", [4, 16]), ("a.lora_magnitude_vector", [4, 1])]).to_vec(), "DoRA"),
        (weights(&[("a.lora_embedding_A", [4, 16])]).to_vec(), "token embedding"),
        (weights(&[("a.lora_A.weight", [4, 16]), ("lm_head.weight", [4, 1])]).to_vec(), "replaces something"),
        (weights(&[("a.lora_a", [4, 16]), ("a.m", [4, 1])]).to_vec(), "DoRA"),
        ([weights(&[]), weights(&[])].concat(), "give each adapter its own"),
    ] {
        let error = adapters(&files).expect_err(says).to_string();
        assert!(error.contains(says), "`{error}` should say `{says}`");
    }
}

#[test]
fn files_beside_an_adapter_are_passed_over() {
    let kept = |names: &[&str], bytes: &[u8]| {
        let files = names.iter().map(|name| file(name, bytes.to_vec())).collect();
        adapter_files(files).map(|files| files.into_iter().map(|file| file.name).collect::<Vec<_>>())
    };
    let all = ["a/adapter_config.json", "a/w.safetensors", "a/tokenizer.json", "README.md", "x.gguf", "o.bin"];
    assert_eq!(kept(&all, b"?").expect("files"), [all[0], all[1], all[4], all[5]]);
    assert_eq!(kept(&["lora.model"], b"GGUF").expect("a file"), ["lora.model"]);
    assert!(kept(&[], b"").expect("nothing").is_empty());
    let error = kept(&["README.md", "tokenizer.json"], b"").expect_err("no adapter").to_string();
    assert!(error.contains("`README.md`"), "{error}");
}

#[test]
fn exported_adapters_are_told_from_a_models_files() {
    let names = ["adapters/0/x.gguf", "adapters/x.gguf", "adapters/a/x.gguf", "model.safetensors"];
    let (model, adapters) = split_adapters(names.map(|name| file(name, Vec::new())).to_vec());
    assert_eq!((model.len(), adapters.len()), (3, 1));
}

#[test]
fn names_go_on_after_those_that_are_taken() {
    let names = |taken: &[&str]| adapter_names(&["b/w.safetensors", "a.gguf", "b/c.json"], taken.iter().copied());
    assert_eq!(names(&["config.json"]), ["adapters/1/w.safetensors", "adapters/0/a.gguf", "adapters/1/c.json"]);
    assert_eq!(names(&["adapters/3/x", "adapters/x"])[1], "adapters/4/a.gguf");
}

#[test]
fn changed_bytes_never_panic() {
    let names = [("base_model.model.a.lora_A.weight", [4, 16]), ("base_model.model.a.lora_B.weight", [8, 4])];
    let config = br#"{"lora_alpha": 8, "alpha_pattern": {"q_proj": 4}, "use_rslora": false}"#.to_vec();
    let good = [tensors(&names), gguf(&lora_keys(8.0)), config];
    let mut accepted = 0;
    for changed in 0..good.len() {
        for at in 0..good[changed].len().min(600) {
            for bits in [1, 2, 16, 128, 255] {
                let mut bytes = good.clone();
                bytes[changed][at] ^= bits;
                let [weights, gguf, config] = bytes;
                let files =
                    [file("x/w.safetensors", weights), file("y/x.gguf", gguf), file("x/adapter_config.json", config)];
                for adapter in adapters(&files).unwrap_or_default() {
                    accepted += 1;
                    for module in &adapter.modules {
                        assert!(module.scale.is_finite() && module.rank() > 0 && module.sizes() > (0, 0));
                    }
                }
            }
        }
    }
    assert!(accepted > 0, "a changed number of a tensor is still a number");
}
