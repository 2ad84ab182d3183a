//! Qwen 3: norms of q and k heads, a head size that does not follow from the width.

use serde_json::Value as Json;

use super::{llama, qwen2};
use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::family::{Alias, Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "qwen3",
    model_types: &["qwen3", "qwen3_vl_text"],
    read_config,
    gguf: &GgufForm {
        architecture: "qwen3",
        // Text part of vision models.
        also: &[Alias::of("qwen3vl")],
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        model_names: &[],
        layout: HeadLayout::Half,
        attention_scale: Some(llama::by_head_size),
        keys: qwen2::keys,
    },
    hugging_face: HuggingFaceForm {
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        is_written: true,
        activation_key: "hidden_act",
        norm_offset: 0.0,
        layout: HeadLayout::Half,
        fields,
    },
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(32), head_dim: Some(128), context: 32_768, theta: 10_000.0 };

/// Numbers that the class of the text part of Qwen3-VL has for missing keys.
const VISION: &[(&str, f64)] = &[("max_position_embeddings", 128_000.0), ("rope_theta", 500_000.0)];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let is_of_vision = config.text("model_type") == Some("qwen3_vl_text");
    let config = if is_of_vision { config.with_defaults(VISION) } else { config };
    let mut dense = Dense { head_norms: true, ..Dense::from_config(config, DEFAULTS)? };
    qwen2::slide(&mut dense, config)?;
    Ok(dense.blueprint(names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(Dense { head_norms: true, ..Dense::from_gguf(keys)? }.blueprint(names))
}

fn fields(blueprint: &Blueprint, has: &dyn Fn(&str) -> bool) -> Vec<(&'static str, Json)> {
    let mut fields = qwen2::windows(blueprint, has);
    fields.push(llama::attention_bias(has));
    fields
}
