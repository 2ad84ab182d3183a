//! Tests with configs that lack keys: a missing key has the value that the model's class gives it.
//! `fixtures/class_defaults.json` has the configs that the classes of transformers 5.24 write when
//! they are made without arguments.

use formats::json::tolerant;
use serde_json::{Map, Value, json};

use crate::{Document, Error, TensorNames, describe, unread_keys};

const CLASSES: &[u8] = include_bytes!("../fixtures/class_defaults.json");

/// Values of keys for which the class has a value that no model can have.
const IN_PLACE: &[(&str, &str, u64)] =
    &[("deepseek_v2", "num_experts_per_tok", 6), ("electra", "embedding_size", 256), ("glm4_moe", "head_dim", 64)];

/// Removing a key changes nothing, or is refused.
#[test]
fn a_missing_key_has_the_default_of_its_class() {
    let configs: Map<String, Value> = serde_json::from_slice(&tolerant(CLASSES)).expect("JSON");
    let (mut tried, mut wrong, mut refused) = (0, Vec::new(), Vec::new());
    for (name, mut config) in configs {
        if let Some((_, key, value)) = IN_PLACE.iter().find(|(own, ..)| *own == name) {
            config[*key] = json!(value);
        }
        let whole = match described(&config) {
            Ok(whole) => whole,
            Err(Error::Unsupported { .. }) => continue,
            Err(error) => {
                refused.push(format!("{name}: {error}"));
                continue;
            }
        };
        for at in paths(&config).into_iter().filter(|at| is_of_class(at)) {
            tried += 1;
            let mut shorter = config.clone();
            let (last, before) = at.split_last().expect("a key");
            let inner = before.iter().fold(&mut shorter, |value, key| &mut value[key]);
            let removed = inner.as_object_mut().expect("an object").remove(last).expect("a value");
            if described(&shorter).is_ok_and(|found| found != whole) {
                wrong.push(format!("{name}: {} = {removed}", at.join(".")));
            }
        }
    }
    assert!(refused.is_empty(), "{} configs of classes are refused:\n{}", refused.len(), refused.join("\n"));
    assert!(wrong.is_empty(), "{} of {tried} missing keys have other values:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried > 1000, "{tried} keys");
}

/// Configs of classes with other values, which are refused, and a part of the error.
const WRONG: &[(&str, &str, &str)] = &[
    ("bamba", r#"{"attn_layer_indices": [40]}"#, "`attn_layer_indices` has 40"),
    ("bamba", r#"{"mamba_d_head": "wide"}"#, "`mamba_d_head` is \"wide\""),
    ("bamba", r#"{"time_step_limit": [0.0, "much"]}"#, "`time_step_limit`"),
    ("ernie4_5_moe", r#"{"moe_norm_min": 0.5}"#, "moe_norm_min"),
    ("gemma4_text", r#"{"intermediate_size": 18446744073709551615, "use_double_wide_mlp": true}"#, ""),
    ("gemma4_text", r#"{"per_layer_config": {"30": {"head_dim": 512}}}"#, "`per_layer_config` has `30`"),
    ("gemma4_text", r#"{"per_layer_config": {"full": {}}}"#, "`per_layer_config` has `full`"),
    ("minimax", r#"{"mlp_alpha_factor": 0.0}"#, "`mlp_alpha_factor` is 0"),
    ("minimax_m3_vl_text", r#"{"swiglu_alpha": 1.0}"#, "`swiglu_alpha` is 1"),
    ("minimax_m3_vl_text", r#"{"sparse_attention_config": {"sparse_init_block": 1}}"#, "`sparse_init_block` is 1"),
    (
        "minimax_m3_vl_text",
        r#"{"index_topk_blocks": 2, "index_local_blocks": 3, "layer_types": null,
        "num_hidden_layers": 1, "mlp_layer_types": null, "sparse_attention_config": {"sparse_attention_freq": [1]}}"#,
        "3 blocks are always chosen",
    ),
    (
        "minimax_m3_vl_text",
        r#"{"layer_types": null, "num_hidden_layers": 1, "mlp_layer_types": null,
        "sparse_attention_config": {"sparse_attention_freq": [1], "sparse_disable_index_value": [0]}}"#,
        "`sparse_disable_index_value` is 0",
    ),
    ("qwen4_exp_text", r#"{"indexer_n_heads": 4}"#, "are missing, expected all of them"),
    (
        "qwen4_exp_text",
        r#"{"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256,
        "indexer_budget": 10, "indexer_compress_ratio": 4}"#,
        "`indexer_budget` is 10",
    ),
    ("qwen4_exp_text", r#"{"output_gate_type": "tanh"}"#, "`output_gate_type` is tanh"),
    ("qwen4_exp_text", r#"{"ple_layer_ids": [41], "eos_token_id": 1}"#, "`ple_layer_ids` has 41"),
    ("qwen4_exp_text", r#"{"ple_layer_ids": [2]}"#, "`eos_token_id` is missing"),
    (
        "qwen4_exp_text",
        r#"{"ple_layer_ids": [2], "eos_token_id": 1, "ngram_vocab_size_base": 18446744073709551615}"#,
        "`ngram_vocab_size_base` is",
    ),
    (
        "qwen4_exp_text",
        r#"{"ple_layer_ids": [1, 2, 3, 5, 6], "eos_token_id": 1, "heads_per_ngram": 512}"#,
        "there are 5120 tables of n-grams",
    ),
    (
        "qwen4_exp_text",
        r#"{"ple_layer_ids": [2], "eos_token_id": 1, "heads_per_ngram": 18446744073709551615}"#,
        "tables of each of the n-grams",
    ),
    (
        "gpt_neo",
        r#"{"attention_layers": null, "attention_types": [[["local", "global"], 18446744073709551615]]}"#,
        "`attention_types`",
    ),
    ("jamba", r#"{"mamba_dt_rank": "all"}"#, "`mamba_dt_rank` is \"all\""),
    (
        "kimi_linear",
        r#"{"layer_types": null, "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [4]}}"#,
        "`kda_layers`",
    ),
    ("laguna", r#"{"num_attention_heads_per_layer": [48]}"#, "`num_attention_heads_per_layer` has 1 items"),
    ("ministral3", r#"{"rope_parameters": null}"#, "`rope_parameters`"),
];

/// A wrong value is refused with its key, or reported as a key that is not read.
#[test]
fn wrong_values_are_refused() {
    let configs: Map<String, Value> = serde_json::from_slice(&tolerant(CLASSES)).expect("JSON");
    for (name, other, expected) in WRONG {
        let mut config = configs[*name].clone();
        let other: Map<String, Value> = serde_json::from_str(other).expect("an object");
        config.as_object_mut().expect("an object").extend(other);
        let raw = config.to_string();
        let document = Document::Config(raw.as_bytes());
        let said = match described(&config) {
            Err(error) => error.to_string(),
            Ok(_) => unread_keys(document, &TensorNames::default()).expect("a config").join(" "),
        };
        assert!(!said.is_empty() && said.contains(expected), "{name} {config}: {said}");
    }
}

/// True if the class has a default for the value at a path. Objects with parameters of `RoPE` and
/// of layers are used as they are, except for the base.
fn is_of_class(at: &[String]) -> bool {
    let is_part = |key: &String| key == "rope_parameters" || key == "per_layer_config";
    !at.iter().rev().skip(1).any(is_part) || (at.last().is_some_and(|last| last == "rope_theta") && at.len() == 2)
}

fn described(config: &Value) -> Result<String, Error> {
    let raw = config.to_string();
    describe(Document::Config(raw.as_bytes()), &TensorNames::default()).map(|found| format!("{:?}", found.blueprint))
}

/// Returns the paths of the values in an object and in its objects.
fn paths(value: &Value) -> Vec<Vec<String>> {
    let Some(map) = value.as_object() else { return vec![] };
    let below = |(key, value): (&String, &Value)| {
        let inner = paths(value).into_iter().map(|rest| [vec![key.clone()], rest].concat());
        std::iter::once(vec![key.clone()]).chain(inner).collect::<Vec<_>>()
    };
    map.iter().flat_map(below).collect()
}

/// Parts of the errors for published models that cannot be run yet.
const NOT_YET: &[&str] = &["rounds weights to three values", "encoders with experts"];

/// Configs of published models of 2026: each is refused with a reason, or read completely.
#[test]
fn published_configs_are_read_completely() {
    let raw = include_bytes!("../fixtures/published.json");
    let configs: Map<String, Value> = serde_json::from_slice(&tolerant(raw)).expect("JSON");
    let mut found = Vec::new();
    for (name, config) in configs {
        let raw = config.to_string();
        match unread_keys(Document::Config(raw.as_bytes()), &TensorNames::default()) {
            Ok(unread) if unread.is_empty() => {}
            Ok(unread) => found.push(format!("{name}: not read: {}", unread.join(", "))),
            Err(Error::Unsupported { .. }) => {}
            Err(error) if NOT_YET.iter().any(|part| error.to_string().contains(part)) => {}
            Err(error) => found.push(format!("{name}: {error}")),
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
