//! Qwen 3.5, 3.6 and 3.8: the mixers of Qwen3-Next with separate projections of the delta nets, and
//! dense feed-forward networks.

use super::qwen3_next::{self, DeltaNetSizes};
use crate::blueprint::{Blueprint, HeadPairing};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, layer_count};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::name_tables::Table;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "qwen3_5",
    model_types: &["qwen3_5_text"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: NAMES, ..GgufForm::not_yet("qwen35") },
    hugging_face: HuggingFaceForm::of("Qwen3_5ForCausalLM", "qwen3_5_text"),
};

/// Names of the tensors of layers in GGUF files.
pub(super) const NAMES: Table = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_a", "linear_attn.A"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), head_dim: Some(256), context: 32_768, theta: 10_000.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    with_mixers(config, names, DEFAULTS)
}

/// Returns the model of a config, with dense feed-forward networks.
pub(super) fn with_mixers(config: Config<'_>, names: &TensorNames, defaults: Defaults) -> Result<Blueprint, Error> {
    let layers = layer_count(config.required("num_hidden_layers")?)?;
    with_mixers_in(config, names, defaults, &qwen3_next::attention_layers(config, layers as u64)?)
}

/// Returns the same model with attention in these layers.
pub(super) fn with_mixers_in(
    config: Config<'_>,
    names: &TensorNames,
    defaults: Defaults,
    attends: &[bool],
) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, defaults)?;
    dense.norm_offset = qwen3_next::norm_offset(config, names);
    dense.rotate_part(config, 4)?;
    let sizes = DeltaNetSizes::from_config(config)?;
    Ok(qwen3_next::mixed(dense, names, attends, sizes))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    with_mixers_of_gguf(keys, names)
}

/// Returns the model of a GGUF file, with dense feed-forward networks. The converter reorders value
/// heads, so that key heads alternate.
pub(super) fn with_mixers_of_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense::from_gguf(keys)?;
    let sizes = DeltaNetSizes::from_gguf(keys, HeadPairing::Alternating)?;
    let attends = qwen3_next::attention_layers_of_gguf(keys, dense.layers.len())?;
    Ok(qwen3_next::mixed(dense, names, &attends, sizes))
}
