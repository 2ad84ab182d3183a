//! Bamba: state space models in most layers, attention with `RoPE` on half of each head in the
//! others.

use crate::blueprint::{Blueprint, Mixer};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, NormNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::state_space::StateSpaceSizes;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "bamba",
    model_types: &["bamba"],
    read_config,
    // The converter writes the architecture of Granite 4.
    gguf: &GgufForm::not_yet("granitehybrid"),
    hugging_face: HuggingFaceForm::of("BambaForCausalLM", "bamba"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), context: 262_144, ..LLAMA };
const NORMS: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: None,
    before_ffn: Some("pre_ff_layernorm"),
    after_ffn: None,
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense {
        norms: NORMS,
        network_modules: ["feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"],
        final_norm: "final_layernorm",
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    match config.unsigned("attn_rotary_emb")? {
        Some(rotated) => dense.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()).for_each(|rope| {
            rope.dimension = Some(rotated);
        }),
        None => dense.rotate_part(config, 2)?,
    }
    let sizes = StateSpaceSizes::from_config(config, dense.norm_epsilon)?;
    let mut blueprint = dense.blueprint(names);
    let attends = config.list("attn_layer_indices")?.unwrap_or_default();
    let layers = blueprint.layers.len() as u64;
    if let Some(other) = attends.iter().find(|own| own.as_u64().is_none_or(|own| own >= layers)) {
        return Err(fail(format!("`attn_layer_indices` has {other}, expected indexes of {layers} layers")));
    }
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        if !attends.iter().any(|own| own.as_u64() == Some(index as u64)) {
            layer.mixer = Mixer::StateSpace(Box::new(sizes.mixer(names, &format!("model.layers.{index}.mamba"))));
        }
    }
    Ok(blueprint)
}
