//! Ministral 3 and Devstral 2: a Mistral whose queries grow with the position.

use super::llama;
use crate::blueprint::{Blueprint, HeadLayout, QueryGrowth};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "ministral3",
    model_types: &["ministral3"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        layout: HeadLayout::Interleaved,
        attention_scale: Some(llama::by_head_size),
        ..GgufForm::not_yet("mistral3")
    },
    hugging_face: HuggingFaceForm::of("Ministral3ForCausalLM", "ministral3"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: Some(128), context: 262_144, theta: 1_000_000.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    config.needs_rope()?;
    let mut dense =
        Dense { norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5), ..Dense::from_config(config, DEFAULTS)? };
    dense.slide_all(config, None)?;
    let mut blueprint = dense.blueprint(names);
    let growth = query_growth(config)?;
    blueprint.attentions_mut().for_each(|attention| attention.query_growth = growth);
    Ok(blueprint)
}

/// Returns the growth of queries that the parameters of `RoPE` define.
pub(super) fn query_growth(config: Config<'_>) -> Result<Option<QueryGrowth>, Error> {
    let Some(rope) = config.object("rope_parameters")? else { return Ok(None) };
    let Some(weight) = rope.float("llama_4_scaling_beta")? else { return Ok(None) };
    let length = rope.required("original_max_position_embeddings")? as f64;
    Ok(Some(QueryGrowth { weight, length, offset: 0.0 }))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = llama::read_interleaved(keys, names)?;
    let growth = growth_of_gguf(keys)?;
    blueprint.attentions_mut().for_each(|attention| attention.query_growth = growth);
    Ok(blueprint)
}

/// Returns the growth of queries of a GGUF file. Files of llama.cpp's converter and of Ollama's
/// have different keys for it.
pub(super) fn growth_of_gguf(keys: Keys<'_>) -> Result<Option<QueryGrowth>, Error> {
    let weight = match keys.float("attention.temperature_scale")? {
        Some(weight) => Some(weight),
        None => keys.float("rope.scaling_beta")?,
    };
    let Some(weight) = weight.filter(|weight| *weight != 0.0) else { return Ok(None) };
    let length = match keys.unsigned("attention.temperature_length")?.filter(|length| *length > 0) {
        Some(length) => length,
        None => keys.original_context()?,
    } as f64;
    Ok(Some(QueryGrowth { weight, length, offset: 0.0 }))
}
