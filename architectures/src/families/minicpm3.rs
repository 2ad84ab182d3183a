//! `MiniCPM` 3: latent attention, and factors of embeddings, outputs of layer parts and logits.

use super::deepseek_v2::latent_attention;
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

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = latent_attention(config, names, HeadLayout::Half)?;
    let number = |key: &str, default: f64| Ok::<_, Error>(config.float(key)?.unwrap_or(default));
    let residual = number("scale_depth", 1.4)? / (blueprint.layers.len() as f64).sqrt();
    let base = number("dim_model_base", 256.0)?;
    if base <= 0.0 {
        return Err(fail(format!("`dim_model_base` is {base}, expected a positive number")));
    }
    blueprint.embedding.scale = Some(number("scale_emb", 1.0)?);
    for layer in &mut blueprint.layers {
        (layer.mixer_residual.scale, layer.ffn_residual.scale) = (Some(residual), Some(residual));
    }
    if let Some(output) = &mut blueprint.output {
        output.scale = Some(base / blueprint.hidden as f64);
    }
    Ok(blueprint)
}
