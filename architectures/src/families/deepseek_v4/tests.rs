//! Tests of the two sources of a model: a published config, and the GGUF file made of it.

use formats::Gguf;
use formats::gguf::{OwnedValue, write_header};

use crate::blueprint::{Activation, Blueprint, Ffn, Mixer};
use crate::{Document, TensorNames, describe};

const CONFIG: &str = r#"{"model_type": "deepseek_v4", "vocab_size": 320, "hidden_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 64, "q_lora_rank": 48, "o_lora_rank": 32,
    "o_groups": 2, "moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 256, "sliding_window": 16, "index_n_heads": 4, "index_head_dim": 32,
    "index_topk": 6, "hc_mult": 4, "hc_sinkhorn_iters": 7, "hc_eps": 0.5, "rms_norm_eps": 0.25,
    "swiglu_limit": 1.5, "num_hash_layers": 1, "qk_rope_head_dim": 8, "rope_theta": 10000,
    "compress_rope_theta": 160000, "compress_ratios": [0, 4, 128, 4, 0],
    "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64}}"#;

/// Returns a blueprint of GGUF metadata, with some keys replaced.
fn of_gguf(other: &[(&str, OwnedValue)]) -> Result<Blueprint, String> {
    let numbers: [(&str, u32); 21] = [
        ("block_count", 4),
        ("context_length", 256),
        ("embedding_length", 128),
        ("embedding_length_out", 512),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 64),
        ("attention.q_lora_rank", 48),
        ("attention.sliding_window", 16),
        ("attention.indexer.head_count", 4),
        ("attention.indexer.key_length", 32),
        ("attention.indexer.top_k", 6),
        ("attention.output_group_count", 2),
        ("attention.output_lora_rank", 32),
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 64),
        ("hyper_connection.count", 4),
        ("hyper_connection.sinkhorn_iterations", 7),
        ("hash_layer_count", 1),
        ("rope.dimension_count", 8),
    ];
    let mut keys: Vec<(&str, OwnedValue)> = numbers.iter().map(|(key, number)| (*key, (*number).into())).collect();
    keys.extend([
        ("vocab_size", 320u32.into()),
        ("rope.scaling.original_context_length", 64u32.into()),
        ("rope.scaling.type", "yarn".into()),
        ("rope.scaling.factor", 4.0f32.into()),
        ("attention.layer_norm_rms_epsilon", 0.25f32.into()),
        ("attention.compress_rope_freq_base", 160_000.0f32.into()),
        ("hyper_connection.epsilon", 0.5f32.into()),
        ("expert_weights_scale", 1.5f32.into()),
        ("attention.compress_ratios", OwnedValue::integers([0, 4, 128, 4, 0])),
        ("swiglu_clamp_exp", OwnedValue::floats([1.5; 5])),
    ]);
    keys.retain(|(key, _)| other.iter().all(|(own, _)| own != key));
    keys.extend(other.iter().cloned());
    let keys = keys.into_iter().map(|(key, value)| (format!("deepseek4.{key}"), value));
    let keys: Vec<_> = std::iter::once(("general.architecture".to_owned(), "deepseek4".into())).chain(keys).collect();
    let names = (0..4).map(|layer| format!("model.layers.{layer}.mlp.gate.weight"));
    let shared = (0..4).map(|layer| format!("model.layers.{layer}.mlp.shared_expert.gate_proj.weight"));
    let header = write_header(&keys, &[]).expect("a header").bytes;
    let gguf = Gguf::parse(&header).expect("it is read");
    let found = describe(Document::Gguf(&gguf), &names.chain(shared).collect());
    found.map(|found| found.blueprint).map_err(|error| error.to_string())
}

/// Removes the parts that have names.
fn blank(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => {
            map.retain(|key, _| !matches!(key.as_str(), "module" | "weight" | "bias" | "sinks" | "of_tokens"));
            for key in ["gate", "up", "down", "group_outputs", "factors"] {
                map.remove(key);
            }
            map.values_mut().for_each(blank);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(blank),
        _ => {}
    }
}

/// Returns the text of a blueprint without the names of tensors and modules, which differ.
fn without_names(blueprint: &Blueprint) -> String {
    let mut value = serde_json::to_value(blueprint).expect("it is written");
    blank(&mut value);
    serde_json::to_string_pretty(&value).expect("it is written")
}

#[test]
fn a_file_says_the_same_as_a_published_config() {
    let config = describe(Document::Config(CONFIG.as_bytes()), &TensorNames::default()).expect("a config").blueprint;
    let file = of_gguf(&[]).expect("a file");
    assert_eq!(without_names(&file), without_names(&config));
    let reaches: Vec<Vec<u64>> =
        config.layers.iter().map(|layer| layer.mixer.compressions().map(|(own, _)| own.reach()).collect()).collect();
    assert_eq!(reaches, [vec![], vec![8, 8], vec![128], vec![8, 8]]);
    for blueprint in [&file, &config] {
        let given: Vec<bool> = blueprint.layers.iter().map(|layer| layer.experts_of_tokens().is_some()).collect();
        assert_eq!(given, [true, false, false, false]);
    }
    let Mixer::Compressed(first) = &config.layers[0].mixer else { panic!("attention with a window") };
    assert!((first.rope.theta - 10_000.0).abs() < 1e-9 && first.rope.switch().is_none());
}

#[test]
fn limits_of_files() {
    let bounded = |limit| Activation::BoundedSilu { limit };
    for (experts, shared, expected) in [
        (OwnedValue::floats([0.0, 2.0, 0.0, 0.0]), None, [[Activation::Silu; 2], [bounded(2.0); 2]]),
        (3.0f32.into(), Some(4.0f32.into()), [[bounded(3.0), bounded(4.0)]; 2]),
    ] {
        let shared = shared.map(|shared| ("swiglu_clamp_shexp", shared));
        let keys: Vec<_> = std::iter::once(("swiglu_clamp_exp", experts)).chain(shared).collect();
        let found = of_gguf(&keys).expect("a file");
        let activations = found.layers[..2].iter().map(|layer| match &layer.ffn {
            Ffn::Experts(own) => [own.activation, own.shared.as_ref().expect("it is there").ffn.activation()],
            _ => panic!("experts"),
        });
        assert_eq!(activations.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn contradictions_are_refused() {
    for (key, value, expected) in [
        (
            "layer_types",
            r#"["sliding_attention", "sliding_attention", "heavily_compressed_attention",
            "compressed_sparse_attention"]"#,
            "different kinds of attention",
        ),
        ("partial_rotary_factor", "0.5", "`qk_rope_head_dim` is 8, but `partial_rotary_factor` means 32"),
        ("num_key_value_heads", "2", "`num_key_value_heads` is 2, expected 1"),
        ("hidden_act", "\"relu\"", "`hidden_act` is relu, expected silu"),
        ("n_shared_experts", "2", "expected 1"),
        ("norm_topk_prob", "false", "expected true"),
    ] {
        let config = CONFIG.replacen('{', &format!("{{\"{key}\": {value}, "), 1);
        let error = describe(Document::Config(config.as_bytes()), &TensorNames::default()).expect_err(key).to_string();
        assert!(error.contains(expected), "{key}: `{error}` should say `{expected}`");
    }
}

#[test]
fn other_files_are_refused() {
    for (key, value, expected) in [
        ("attention.compress_ratios", OwnedValue::integers([0, 8, 128, 4]), "has 8, expected 0, 4 or 128"),
        ("attention.compress_ratios", OwnedValue::integers([0, 4]), "is not a list of numbers for 4 layers"),
        ("swiglu_clamp_exp", "much".into(), "swiglu_clamp_exp"),
        ("embedding_length_out", 128u32.into(), "expected the 512 of all streams"),
        ("attention.output_group_count", 3u32.into(), "8 attention heads are not 3 groups"),
        ("hyper_connection.sinkhorn_iterations", 0u32.into(), "are balanced is 0"),
    ] {
        let error = of_gguf(&[(key, value)]).expect_err(key);
        assert!(error.contains(expected), "{key}: `{error}` should say `{expected}`");
    }
}
