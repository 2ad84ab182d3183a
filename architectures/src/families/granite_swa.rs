//! Granite with windows: a Granite with sinks, windows on three of four layers, and a base of
//! `RoPE` for each layer.

use serde_json::Value;

use super::granite;
use crate::blueprint::{Blueprint, Tensor};
use crate::config_json::{Config, fail};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "granite_swa",
    model_types: &["granite_swa"],
    read_config,
    gguf: &GgufForm::not_yet("granite_swa"),
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
    let mut blueprint = dense.blueprint(names);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        attention.sinks = Some(Tensor::named(format!("model.layers.{index}.self_attn.sinks")));
    }
    Ok(blueprint)
}
