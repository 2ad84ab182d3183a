//! Keys of configs: each changes the computation, is refused, or is known to be harmless. A create
//! reports unread keys of GGUF files.

use std::path::{Path, PathBuf};

use architectures::{Document, TensorNames, describe, is_harmless_key, unread_keys};
use formats::Gguf;
use formats::gguf::{NewTensor, OwnedValue, TensorInfo, write_header};
use serde_json::{Map, Value, json};

use crate::export::exported;
use crate::server::Server;
use crate::support::{entries, fixtures, name, read, root, shared, tiny_model};

/// Keys whose value only matters together with another key, or with tensors, that these configs do
/// not have. The comments name the missing part.
const BESIDE_OTHERS: &[(&str, &str)] = &[
    // A window size.
    ("qwen2", "use_sliding_window"),
    ("qwen3", "use_sliding_window"),
    ("qwen3_moe", "use_sliding_window"),
    ("smollm3", "use_sliding_window"),
    // Attention heads without a latent.
    ("deepseek_v2", "num_key_value_heads"),
    ("deepseek_v3", "num_key_value_heads"),
    ("deepseek_v32", "head_dim"),
    ("deepseek_v32", "num_key_value_heads"),
    ("glm_moe_dsa", "head_dim"),
    ("glm_moe_dsa", "num_key_value_heads"),
    // Layers without experts.
    ("minimax_m3", "dense_intermediate_size"),
    ("qwen3_moe", "intermediate_size"),
    ("qwen3_next", "intermediate_size"),
    ("qwen4_exp", "intermediate_size"),
    // Layers with an indexer.
    ("minimax_m3", "index_block_size"),
    ("minimax_m3", "index_head_dim"),
    ("minimax_m3", "index_local_blocks"),
    ("minimax_m3", "index_n_heads"),
    ("minimax_m3", "index_topk_blocks"),
    // Qwen3 with experts: the class of Qwen3-VL, which belongs to the family, has no such key.
    ("qwen3_moe", "norm_topk_prob"),
    // Several tensors for the tables of n-grams of a layer.
    ("qwen4_exp", "split_ngram_parts"),
    // The tensor of the token types' embeddings.
    ("bert", "type_vocab_size"),
    ("xlm-roberta", "type_vocab_size"),
    // The scaling begins after the model's context length, which no load exceeds.
    ("internlm2", "factor"),
    // The older layout of Falcon.
    ("falcon", "multi_query"),
    // A config without a list of layer types.
    ("gemma3", "sliding_window_pattern"),
    // A config without `rope_type`, the newer name of the same key.
    ("qwen2", "type"),
    // Several groups of experts.
    ("dots1", "topk_group"),
    ("exaone_moe", "topk_group"),
    ("glm4_moe", "topk_group"),
    ("glm4_moe_lite", "topk_group"),
    ("glm_moe_dsa", "topk_group"),
    ("kimi_linear", "topk_group"),
    ("mimo_v2_flash", "topk_group"),
    ("mistral4", "topk_group"),
    ("nemotron_h", "topk_group"),
    ("solar_open", "topk_group"),
    // Attention heads without a latent.
    ("glm4_moe_lite", "num_key_value_heads"),
    ("glm4_moe_lite", "partial_rotary_factor"),
    ("kimi_linear", "head_dim"),
    ("kimi_linear", "num_key_value_heads"),
    ("minicpm3", "head_dim"),
    ("minicpm3", "num_key_value_heads"),
    ("mistral4", "head_dim"),
    ("mistral4", "num_key_value_heads"),
    ("mistral4", "partial_rotary_factor"),
    ("youtu", "head_dim"),
    ("youtu", "num_key_value_heads"),
    // A config without `rope_type`.
    ("ministral3", "type"),
    ("mistral4", "type"),
    // A config without lists of the types of layers, or of their values.
    ("afmoe", "global_attn_every_n_layers"),
    ("cohere2_moe", "sliding_window_pattern"),
    ("deepseek_v32", "first_k_dense_replace"),
    ("glm_moe_dsa", "first_k_dense_replace"),
    ("exaone_moe", "first_k_dense_replace"),
    ("gpt_neo", "attention_types"),
    ("granite_swa", "rope_theta"),
    ("laguna", "num_attention_heads"),
    ("llama4", "interleave_moe_layer_step"),
    ("llama4", "no_rope_layer_interval"),
    // Layers with a window only.
    ("deepseek_v4", "main"),
    // A config without nested `rope_parameters`, or without a share.
    ("deepseek_v4", "compress_rope_theta"),
    ("deepseek_v4", "qk_rope_head_dim"),
    ("deepseek_v4", "rope_theta"),
    // Layers with windows.
    ("dots1", "max_window_layers"),
    ("dots1", "sliding_window"),
    ("laguna", "sliding_window"),
    // A config without `rope_parameters`.
    ("cohere2_moe", "rope_scaling"),
    ("cohere2_moe", "rope_theta"),
    // Dense layers, and a router with sigmoid scores.
    ("cohere2_moe", "prefix_dense_sliding_window_pattern"),
    ("cohere2_moe", "norm_topk_prob"),
    // More layers than these models have.
    ("ernie4_5_moe", "moe_layer_end_index"),
    ("jamba", "attn_layer_period"),
    // Layers that share keys, and embeddings of layers.
    ("gemma4", "use_double_wide_mlp"),
    ("gemma4", "vocab_size_per_layer_input"),
    // Layers with experts.
    ("nemotron_h", "moe_intermediate_size"),
    ("nemotron_h", "moe_shared_expert_intermediate_size"),
    ("nemotron_h", "n_group"),
    ("nemotron_h", "n_routed_experts"),
    ("nemotron_h", "norm_topk_prob"),
    ("nemotron_h", "num_experts_per_tok"),
    ("nemotron_h", "routed_scaling_factor"),
    // Layers without experts.
    ("granitemoehybrid", "intermediate_size"),
    // A config without the size of a head.
    ("bamba", "mamba_expand"),
    ("falcon_h1", "mamba_d_ssm"),
    ("falcon_h1", "mamba_expand"),
    // The tensor of a norm.
    ("falcon_h1", "mamba_norm_before_gate"),
    ("falcon_h1", "mamba_rms_norm"),
    ("granitemoehybrid", "mamba_expand"),
    // State space models.
    ("granitemoehybrid", "mamba_d_conv"),
    ("granitemoehybrid", "mamba_d_head"),
    ("granitemoehybrid", "mamba_d_state"),
    ("granitemoehybrid", "mamba_n_groups"),
    ("granitemoehybrid", "mamba_n_heads"),
    // Rotary positions: every value but `rope` means none.
    ("granitemoehybrid", "position_embedding_type"),
    ("granitemoehybrid", "rope_theta"),
    // Several key heads.
    ("gpt_bigcode", "num_key_value_heads"),
    // The tensors of biases and of the token types' embeddings.
    ("lfm2_moe", "use_expert_bias"),
    ("gte", "type_vocab_size"),
    ("jina_embeddings_v3", "type_vocab_size"),
    ("nomic_bert", "type_vocab_size"),
    // The class does not scale the logits of a text part.
    ("cohere2", "logit_scale"),
    // A scaling with these parameters: the config has a dynamic one with another parameter.
    ("hunyuan", "beta_fast"),
    ("hunyuan", "beta_slow"),
    ("hunyuan", "factor"),
    ("hunyuan", "mscale"),
    ("hunyuan", "mscale_all_dim"),
];

#[test]
fn every_key_counts_is_refused_or_is_harmless() {
    let Some(shared) = shared() else { return };
    let mut configs = Vec::new();
    find(&shared.join("fixtures"), &mut configs);
    find(&root().join("tests"), &mut configs);
    let (mut tried, mut silent, mut unknown) = (0, Vec::new(), Vec::new());
    for path in configs {
        let raw = std::fs::read(&path).expect("a config");
        let Ok(Value::Object(whole)) = serde_json::from_slice(&formats::json::tolerant(&raw)) else { continue };
        let Ok(found) = describe(Document::Config(&raw), &TensorNames::default()) else { continue };
        let unread = unread_keys(Document::Config(&raw), &TensorNames::default()).expect("it was read before");
        let family = found.family.name;
        unknown.extend(unread.into_iter().map(|key| format!("{} ({family}): {key}", path.display())));
        let text = whole.get("text_config").and_then(Value::as_object).unwrap_or(&whole);
        for at in keys(text) {
            let value = at.iter().fold(&Value::Object(text.clone()), |value, key| &value[key]).clone();
            let last = at.last().expect("a key");
            if is_harmless_key(family, last, &value) || BESIDE_OTHERS.contains(&(family, last)) {
                continue;
            }
            tried += 1;
            if !changed(&value).into_iter().any(|other| is_noticed(&whole, &at, other, &found.blueprint)) {
                silent.push(format!("{} ({family}): {} = {value}", path.display(), at.join(".")));
            }
        }
    }
    assert!(unknown.is_empty(), "published configs have keys that are not known:\n{}", unknown.join("\n"));
    assert!(
        silent.is_empty(),
        "{} of {tried} keys are read and count for nothing:\n{}",
        silent.len(),
        silent.join("\n")
    );
    assert!(tried > 1000, "{tried} keys");
}

/// Configs with the keys of published models of each family, and small sizes: every key is known.
#[test]
fn published_keys_are_known() {
    let path = root().join("tests/published_configs.json");
    let configs: Map<String, Value> = serde_json::from_slice(&std::fs::read(path).expect("configs")).expect("JSON");
    for (name, config) in configs {
        let unread = unread_keys(Document::Config(config.to_string().as_bytes()), &TensorNames::default());
        assert_eq!(unread.expect(&name), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn what_no_family_knows_is_named() {
    let config = json!({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 320, "logit_curve": 2.5, "is_decoder": true, "use_mrope": false,
        "rope_scaling": {"type": "linear", "factor": 2.0, "phase": 0.5}, "attention_dropout": 0.1, "sinks": null});
    let unread =
        unread_keys(Document::Config(config.to_string().as_bytes()), &TensorNames::default()).expect("a config");
    assert_eq!(unread, ["logit_curve", "is_decoder", "rope_scaling.phase"]);
}

fn find(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            find(&path, found);
        } else if path.file_name().is_some_and(|name| name == "config.json") {
            found.push(path);
        }
    }
}

/// Returns the paths of the keys in a config and in its nested objects.
fn keys(map: &Map<String, Value>) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (key, value) in map {
        match value.as_object() {
            Some(inner) if key.starts_with("rope_") => {
                found.extend(keys(inner).into_iter().map(|rest| [vec![key.clone()], rest].concat()));
            }
            _ => found.push(vec![key.clone()]),
        }
    }
    found
}

/// Returns values that differ from the given one.
fn changed(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(flag) => vec![json!(!flag)],
        Value::Number(number) => match number.as_u64() {
            Some(number) => vec![json!(number + 1), json!(number * 2)],
            None => vec![json!(number.as_f64().unwrap_or_default() * 0.75 + 0.03)],
        },
        Value::String(text) => vec![json!(format!("{text}-x"))],
        Value::Array(list) => {
            let mut turned = list.clone();
            turned.reverse();
            vec![json!([list.clone(), list.clone()].concat()), json!(turned), json!([0]), json!([1]), json!(["x"])]
        }
        Value::Null | Value::Object(_) => vec![json!(3), json!(true), json!("x"), json!({"x": 1})],
    }
}

fn is_noticed(whole: &Map<String, Value>, at: &[String], other: Value, before: &architectures::Blueprint) -> bool {
    let mut config = Value::Object(whole.clone());
    let text = if whole.contains_key("text_config") { &mut config["text_config"] } else { &mut config };
    *at.iter().fold(text, |value, key| &mut value[key]) = other;
    let raw = config.to_string();
    let Ok(found) = describe(Document::Config(raw.as_bytes()), &TensorNames::default()) else { return true };
    let unread = unread_keys(Document::Config(raw.as_bytes()), &TensorNames::default()).expect("it was read before");
    !unread.is_empty() || format!("{:?}", found.blueprint) != format!("{before:?}")
}

/// Returns the keys of a GGUF file that no reader uses.
fn unread_of_gguf(raw: &[u8]) -> Vec<String> {
    let gguf = Gguf::parse_header(raw).expect("a header");
    let names: TensorNames = gguf.tensors.iter().map(|tensor| tensor.name.to_owned()).collect();
    unread_keys(Document::Gguf(&gguf), &names).expect("a known architecture")
}

#[test]
fn every_key_of_the_gguf_files_is_read() {
    let Some(models) = fixtures("config_keys::every_key_of_the_gguf_files_is_read", "gguf/models") else { return };
    let mut count = 0;
    for folder in entries(&models).into_iter().filter(|path| path.join("model.gguf").is_file()) {
        // The model's classes for classification and for embeddings pool differently, and the file
        // has no classifier.
        let known: &[&str] = if name(&folder) == "modernbert" { &["modern-bert.classifier.pooling_type"] } else { &[] };
        assert_eq!(unread_of_gguf(&read(&folder.join("model.gguf"))), known, "{}", folder.display());
        count += 1;
    }
    assert!(count > 50, "{count} files");
}

#[tokio::test]
async fn a_create_tells_keys_of_gguf_that_are_not_read() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let file = place.path().join("tiny.gguf");
    exported(&server, "tiny", &file, &["--format", "gguf", "--lossy"]);
    let bytes = read(&file);
    let noted = |value: f32| {
        let gguf = Gguf::parse_header(&bytes).expect("a header");
        let own = |(key, value): &(&str, formats::gguf::Value<'_>)| ((*key).to_owned(), OwnedValue::from(value));
        let mut metadata: Vec<_> = gguf.metadata.iter().map(own).collect();
        metadata.push(("llama.attention.unheard_of".to_owned(), value.into()));
        let tensor = |tensor: &TensorInfo<'_>| NewTensor {
            name: tensor.name.to_owned(),
            kind: tensor.kind,
            dims: tensor.dims.clone(),
        };
        let header = write_header(&metadata, &gguf.tensors.iter().map(tensor).collect::<Vec<_>>()).expect("a header");
        let start = usize::try_from(gguf.data_start).expect("small");
        let changed = [header.bytes.as_slice(), &bytes[start..]].concat();
        let path = place.path().join("changed.gguf");
        std::fs::write(&path, changed).expect("a file");
        let modelfile = place.path().join("Modelfile");
        std::fs::write(&modelfile, format!("FROM {}\n", path.display())).expect("a file");
        let output = server.lode(&["create", "changed", "-f", modelfile.to_str().expect("a path")]);
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said).into_owned()
    };
    let said = noted(3.0);
    assert!(said.contains("note: its GGUF header has `llama.attention.unheard_of`"), "{said}");
    assert!(said.contains("success"), "{said}");
    let said = noted(0.0);
    assert!(!said.contains("note:") && said.contains("success"), "{said}");
}
