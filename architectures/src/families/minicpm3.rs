//! `MiniCPM` 3: latent attention, and factors of embeddings, outputs of layer parts and logits.

use super::deepseek_v2::{self, latent_attention_of};
use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::{Config, fail};
use crate::dense::Dense;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "minicpm3",
    model_types: &["minicpm3"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: deepseek_v2::NAMES, ..GgufForm::not_yet("minicpm3") },
    hugging_face: HuggingFaceForm::of("MiniCPM3ForCausalLM", "minicpm3"),
};

const EMBEDDING_SCALE: f64 = 12.0;
/// Factor of the parts of layers, before it is divided by the root of the number of layers.
const RESIDUAL_SCALE: f64 = 1.4;
/// Width of the model from which the factor of logits was taken.
const BASE_WIDTH: f64 = 256.0;

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[
    ("max_position_embeddings", 32_768.0),
    ("rms_norm_eps", 1e-5),
    ("q_lora_rank", 768.0),
    ("kv_lora_rank", 256.0),
    ("qk_nope_head_dim", 64.0),
    ("qk_rope_head_dim", 32.0),
];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let by_width = config.required("hidden_size")?.checked_div(config.required("num_attention_heads")?).unwrap_or(0);
    let value_dim = config.unsigned("v_head_dim")?.unwrap_or(by_width);
    let mut blueprint = latent_attention_of(config, names, HeadLayout::Half, value_dim)?;
    // `null` means no scale.
    let number = |key: &str, default: f64, of_null: f64| {
        Ok::<_, Error>(config.float(key)?.unwrap_or(if config.is_null(key) { of_null } else { default }))
    };
    let root = (blueprint.layers.len() as f64).sqrt();
    let residual = number("scale_depth", RESIDUAL_SCALE, root)? / root;
    let base = number("dim_model_base", BASE_WIDTH, blueprint.hidden as f64)?;
    if base <= 0.0 {
        return Err(fail(format!("`dim_model_base` is {base}, expected a positive number")));
    }
    scale(&mut blueprint, config.float("scale_emb")?.unwrap_or(EMBEDDING_SCALE), residual, base);
    Ok(blueprint)
}

/// Sets the factors of the embedding and of all parts of layers. Logits are divided by the ratio of
/// the width to `base`.
fn scale(blueprint: &mut Blueprint, embedding: f64, residual: f64, base: f64) {
    blueprint.embedding.scale = Some(embedding);
    for layer in &mut blueprint.layers {
        (layer.mixer_residual.scale, layer.ffn_residual.scale) = (Some(residual), Some(residual));
    }
    if let Some(output) = &mut blueprint.output {
        output.scale = Some(base / blueprint.hidden as f64);
    }
}

/// Reads GGUF metadata. Files have no keys for the factors.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense::from_gguf(keys)?;
    let by_width = dense.hidden.checked_div(dense.heads).unwrap_or(0);
    let value_dim = keys.unsigned("attention.value_length")?.unwrap_or(by_width);
    let mut blueprint = deepseek_v2::latent_of_gguf(keys, names, dense, HeadLayout::Half, value_dim)?;
    let residual = RESIDUAL_SCALE / (blueprint.layers.len() as f64).sqrt();
    scale(&mut blueprint, EMBEDDING_SCALE, residual, BASE_WIDTH);
    Ok(blueprint)
}
