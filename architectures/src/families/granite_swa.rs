//! Granite with windows: a Granite with sinks, windows on three of four layers, and a base of
//! `RoPE` for each layer.

use serde_json::Value;

use super::granite;
use crate::blueprint::{Blueprint, HeadLayout, Tensor};
use crate::config_json::{Config, fail};
use crate::dense::Dense;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "granite_swa",
    model_types: &["granite_swa"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("ffn_norm", "post_attention_layernorm"), ("attn_sinks.weight", "self_attn.sinks")],
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("granite_swa")
    },
    hugging_face: HuggingFaceForm::of("GraniteSWAForCausalLM", "granite_swa"),
};

const WINDOW: u64 = 128;
/// Every fourth layer, from the first on, has full attention.
const PATTERN: u64 = 4;

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] =
    &[("max_position_embeddings", 8192.0), ("num_key_value_heads", 4.0), ("rms_norm_eps", 1e-5)];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let mut dense = granite::dense(config)?;
    let layers = dense.layers.len() as u64;
    let default = || (0..layers).map(|layer| !layer.is_multiple_of(PATTERN)).collect();
    let slides: Vec<bool> = config.sliding_layers(layers)?.unwrap_or_else(default);
    dense.slide(&slides, config.unsigned("sliding_window")?.unwrap_or(WINDOW));
    let base =
        |base: &Value| base.as_f64().ok_or_else(|| fail(format!("`layer_rope_theta` has {base}, expected numbers")));
    if let Some(bases) = config.per_layer("layer_rope_theta", layers, base)? {
        for (layer, base) in dense.layers.iter_mut().zip(bases) {
            match &mut layer.rope {
                Some(rope) if base != 0.0 => rope.theta = base,
                // A base of 0 means no position information.
                rope => *rope = None,
            }
        }
    }
    Ok(with_sinks(dense, names))
}

/// Reads GGUF metadata. A list states which layers have positions.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = granite::dense_of_gguf(keys)?;
    dense.slide_by_keys(keys, PATTERN, WINDOW)?;
    if let Some(rotates) = keys.layers_with("attention.rope_pattern", dense.layers.len())? {
        dense.rotate_only(&rotates);
    }
    if keys.unsigned("expert_count")?.is_some_and(|count| count > 0) {
        return Err(gguf_keys::fail("`expert_count` is set: experts of this family cannot be run yet"));
    }
    Ok(with_sinks(dense, names))
}

fn with_sinks(dense: Dense, names: &TensorNames) -> Blueprint {
    let mut blueprint = dense.blueprint(names);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        attention.sinks = Some(Tensor::named(format!("model.layers.{index}.self_attn.sinks")));
    }
    blueprint
}
