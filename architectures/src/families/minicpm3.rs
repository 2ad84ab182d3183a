//! `MiniCPM` 3: latent attention, and factors of embeddings, outputs of layer parts and logits.

use super::deepseek_v2::latent_attention_of;
use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::{Config, fail};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "minicpm3",
    model_types: &["minicpm3"],
    read_config,
    gguf: &GgufForm::not_yet("minicpm3"),
    hugging_face: HuggingFaceForm::of("MiniCPM3ForCausalLM", "minicpm3"),
};

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
    let residual = number("scale_depth", 1.4, root)? / root;
    let base = number("dim_model_base", 256.0, blueprint.hidden as f64)?;
    if base <= 0.0 {
        return Err(fail(format!("`dim_model_base` is {base}, expected a positive number")));
    }
    blueprint.embedding.scale = Some(config.float("scale_emb")?.unwrap_or(12.0));
    for layer in &mut blueprint.layers {
        (layer.mixer_residual.scale, layer.ffn_residual.scale) = (Some(residual), Some(residual));
    }
    if let Some(output) = &mut blueprint.output {
        output.scale = Some(base / blueprint.hidden as f64);
    }
    Ok(blueprint)
}
