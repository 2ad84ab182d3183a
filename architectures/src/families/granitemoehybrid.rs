//! Granite 4: Granite's factors, state space models in most layers, experts with a network beside
//! them, or only that network.

use super::{granite, granitemoe};
use crate::blueprint::{Blueprint, Ffn, HeadLayout, Mixer, RouterScores};
use crate::config_json::{Config, fail};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::state_space::StateSpaceSizes;
use crate::{Error, TensorNames, experts};

pub(super) const FAMILY: Family = Family {
    name: "granitemoehybrid",
    model_types: &["granitemoehybrid"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("ffn_norm", "post_attention_layernorm"),
            ("ssm_in", "mamba.in_proj"),
            ("ssm_conv1d", "mamba.conv1d"),
            ("ssm_dt.bias", "mamba.dt_bias"),
            ("ssm_a", "mamba.A"),
            ("ssm_d", "mamba.D"),
            ("ssm_norm", "mamba.norm"),
            ("ssm_out", "mamba.out_proj"),
        ],
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("granitehybrid")
    },
    hugging_face: HuggingFaceForm::of("GraniteMoeHybridForCausalLM", "granitemoehybrid"),
};

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[("num_local_experts", 8.0), ("shared_intermediate_size", 1024.0)];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let mut dense = granite::dense(config)?;
    if config.text("position_embedding_type") != Some("rope") {
        dense.layers.iter_mut().for_each(|layer| layer.rope = None);
    }
    let layers = dense.layers.len();
    let sizes = StateSpaceSizes::from_config(config, dense.norm_epsilon)?;
    let activation = dense.activation;
    let mut blueprint = dense.blueprint(names);
    let attends = config.attention_layers("layer_types", layers as u64)?.unwrap_or_else(|| vec![false; layers]);
    with_mixers(&mut blueprint, names, &attends, sizes);
    if experts::count(config, 0)? > 0 {
        granitemoe::add_experts(config, names, &mut blueprint)?;
        return Ok(blueprint);
    }
    let width = config.unsigned("shared_intermediate_size")?.unwrap_or(1024);
    if width == 0 {
        return Err(fail("there are neither experts nor a shared network"));
    }
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        layer.ffn = Ffn::Gated(Box::new(granitemoe::fused_network(names, index, width, activation)));
    }
    Ok(blueprint)
}

/// Reads GGUF metadata. Layers without key and value heads are state space models.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = granite::read_gguf(keys, names)?;
    let layers = blueprint.layers.len();
    let attends = keys.layers_with("attention.head_count_kv", layers)?.unwrap_or_else(|| vec![true; layers]);
    let sizes = StateSpaceSizes::from_gguf(keys, blueprint.epsilon())?;
    with_mixers(&mut blueprint, names, &attends, sizes);
    if keys.unsigned("expert_count")?.is_some_and(|count| count > 0) {
        experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Softmax)?;
    }
    Ok(blueprint)
}

/// Replaces the mixers of the layers without attention.
fn with_mixers(blueprint: &mut Blueprint, names: &TensorNames, attends: &[bool], sizes: StateSpaceSizes) {
    for (index, layer) in blueprint.layers.iter_mut().enumerate().filter(|(index, _)| !attends[*index]) {
        layer.mixer = Mixer::StateSpace(Box::new(sizes.mixer(names, &format!("model.layers.{index}.mamba"))));
    }
}
