//! Nomic Embed v1 and v1.5: a BERT with `RoPE` and gated networks.

use super::bert::token_types;
use crate::blueprint::{Activation, Blueprint};
use crate::config_json::{Config, fail};
use crate::dense::{layer_count, vocabulary};
use crate::encoder::{AttentionNames, Encoder, EncoderNames, NetworkNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "nomic_bert",
    model_types: &["nomic_bert"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("attn_qkv", "attn.Wqkv"),
            ("attn_output", "attn.out_proj"),
            ("attn_output_norm", "norm1"),
            ("ffn_up", "mlp.fc11"),
            ("ffn_gate", "mlp.fc12"),
            ("ffn_down", "mlp.fc2"),
            ("layer_output_norm", "norm2"),
        ],
        model_names: &[
            ("token_embd.weight", "embeddings.word_embeddings.weight"),
            ("token_types.weight", "embeddings.token_type_embeddings.weight"),
            ("token_embd_norm.weight", "emb_ln.weight"),
            ("token_embd_norm.bias", "emb_ln.bias"),
        ],
        ..GgufForm::not_yet("nomic-bert")
    },
    hugging_face: HuggingFaceForm::of("NomicBertModel", "nomic_bert"),
};

fn names_of(root: &str, layers: &'static str) -> EncoderNames {
    EncoderNames {
        root: root.to_owned(),
        tables: ["embeddings.word_embeddings", "", "embeddings.token_type_embeddings"],
        embedding_norm: "emb_ln",
        layers,
        attention: AttentionNames::Together(["attn.Wqkv", "attn.out_proj"]),
        norms: ["norm1", "norm2"],
        network: NetworkNames::Gated(["mlp.fc12", "mlp.fc11", "mlp.fc2"]),
    }
}

/// Reads a config. Published configs have the keys of GPT-2.
fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(&[
        ("hidden_size", "n_embd"),
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
        ("intermediate_size", "n_inner"),
        ("max_position_embeddings", "n_positions"),
        ("layer_norm_eps", "layer_norm_epsilon"),
        ("rope_theta", "rotary_emb_base"),
        ("hidden_act", "activation_function"),
    ]);
    if config.unsigned("num_experts")?.is_some_and(|count| count > 0) {
        return Err(fail("`num_experts` is set: encoders with experts cannot be run from folders yet"));
    }
    for (key, expected) in [("prenorm", false), ("rotary_emb_interleaved", false)] {
        if config.flag(key)?.is_some_and(|flag| flag != expected) {
            return Err(fail(format!("`{key}` is {}, which cannot be run yet", !expected)));
        }
    }
    let (hidden, heads) = (config.required("hidden_size")?, config.required("num_attention_heads")?);
    if config.unsigned("head_dim")?.is_some_and(|head_dim| head_dim.saturating_mul(heads) != hidden) {
        return Err(fail("`head_dim` is not `hidden_size` divided by the number of heads"));
    }
    let activation = match config.text("hidden_act") {
        Some("swiglu") => Activation::Silu,
        Some("geglu") => Activation::Gelu,
        _ => config.activation("hidden_act", Activation::Silu)?,
    };
    let encoder = Encoder {
        vocabulary: config.required("vocab_size")?,
        hidden,
        heads,
        width: config.required("intermediate_size")?,
        layers: layer_count(config.required("num_hidden_layers")?)?,
        context: config.unsigned("max_position_embeddings")?.unwrap_or(2048),
        epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-12),
        activation,
        rope: Some(config.rope("full_attention", 1000.0)?),
        positions: None,
        types: config.unsigned("type_vocab_size")?.unwrap_or(2),
        names: names_of("", "encoder.layers."),
    };
    Ok(encoder.blueprint(names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let encoder = Encoder {
        vocabulary: vocabulary(keys)?,
        hidden: keys.required("embedding_length")?,
        heads: keys.required("attention.head_count")?,
        width: keys.required("feed_forward_length")?,
        layers: layer_count(keys.required("block_count")?)?,
        context: keys.required("context_length")?,
        epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-12),
        activation: Activation::Silu,
        rope: Some(keys.rope()?),
        positions: None,
        types: token_types(keys),
        names: names_of("", "model.layers."),
    };
    Ok(encoder.blueprint(names))
}
