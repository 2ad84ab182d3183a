//! Nomic Embed v1 and v1.5: a BERT with `RoPE` and gated networks.

use crate::blueprint::{Activation, Blueprint};
use crate::config_json::{Config, fail};
use crate::encoder::{AttentionNames, Encoder, EncoderDefaults, EncoderNames, NetworkNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

const DEFAULTS: EncoderDefaults =
    EncoderDefaults { context: 2048, epsilon: 1e-12, activation: Activation::Silu, theta: 1000.0, types: 2 };

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
        model_names: name_tables::ENCODERS,
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
    let mut encoder =
        Encoder { activation, ..Encoder::from_config(config, &DEFAULTS, names_of("", "encoder.layers."))? };
    let trained = config.unsigned("max_trained_positions")?;
    if let (Some(_), Some(trained)) = (config.float("rotary_scaling_factor")?, trained) {
        // Longer texts have other frequencies, which depend on their length.
        encoder.context = encoder.context.min(trained);
    }
    Ok(encoder.blueprint(names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(Encoder::from_gguf(keys, &DEFAULTS, names_of("", "model.layers."))?.blueprint(names))
}
