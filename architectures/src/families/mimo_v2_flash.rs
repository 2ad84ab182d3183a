//! `MiMo` V2 Flash: windows with sinks and twice the key heads on most layers, values shorter than
//! keys, experts with sigmoid scores.

use serde_json::Value;

use crate::blueprint::{Activation, Blueprint, Tensor};
use crate::config_json::{Config, fail, share};
use crate::dense::{Defaults, Dense};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES, SigmoidRouter};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, Rope, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "mimo_v2_flash",
    model_types: &["mimo_v2_flash"],
    read_config,
    gguf: &GgufForm::not_yet("mimo2"),
    hugging_face: HuggingFaceForm::of("MiMoV2FlashForCausalLM", "mimo_v2_flash"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), head_dim: Some(192), context: 131_072, theta: FULL_THETA };
/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[
    ("rms_norm_eps", 1e-5),
    ("n_routed_experts", 256.0),
    ("moe_intermediate_size", 2048.0),
    ("num_experts_per_tok", 8.0),
];
const FULL_THETA: f64 = 5_000_000.0;
const SLIDING_THETA: f64 = 10_000.0;
/// Share of a head that is rotated.
const ROTATED: f64 = 0.334;
const WINDOW: u64 = 129;
const VALUE_DIM: u64 = 128;
/// Factor of the values.
const VALUE_SCALE: f64 = 0.707;
/// The first layer and every sixth one have full attention.
const PATTERN: u64 = 6;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS).with_other_keys(&[("rms_norm_eps", "layernorm_epsilon")]);
    check_sliding_heads(config)?;
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    dense.value_dim = config.unsigned("v_head_dim")?.unwrap_or(VALUE_DIM);
    let layers = dense.layers.len() as u64;
    let usual = || (0..layers).map(|layer| layer > 0 && !(layer + 1).is_multiple_of(PATTERN)).collect();
    let slides: Vec<bool> = match config.sliding_layers(layers)? {
        Some(slides) => slides,
        None => flags(config, "hybrid_layer_pattern", layers)?.unwrap_or_else(usual),
    };
    let window = match config.unsigned("sliding_window_size")? {
        // This key counts the positions before a token.
        Some(before) => before.saturating_add(1),
        None => config.unsigned("sliding_window")?.unwrap_or(WINDOW),
    };
    dense.slide(&slides, window);
    set_ropes(config, &mut dense)?;
    let scale = config.float("attention_value_scale")?;
    let scale = scale.unwrap_or(if config.is_null("attention_value_scale") { 1.0 } else { VALUE_SCALE });
    let mut blueprint = dense.blueprint(names);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        if attention.window.is_some() {
            attention.kv_heads = attention.kv_heads.saturating_mul(2);
            attention.sinks = Some(Tensor::named(format!("model.layers.{index}.self_attn.attention_sink_bias")));
        }
        if attention.output.bias.is_some() {
            return Err(fail("the output projection of attention has a bias, which this family does not have"));
        }
    }
    // Scaled values scale the output of attention, which has no bias.
    for layer in &mut blueprint.layers {
        layer.mixer_residual.scale = Some(scale);
    }
    let rule = SigmoidRouter::from_config(config, true, 1.0)?;
    let sparse = match flags(config, "moe_layer_freq", layers)? {
        Some(sparse) => sparse,
        None => experts::after_dense_layers(config, blueprint.layers.len(), 1)?,
    };
    let sizes = ExpertSizes {
        count: config.required("n_routed_experts")?,
        width: config.required("moe_intermediate_size")?,
        top_k: config.required("num_experts_per_tok")?,
        activation: config.activation("hidden_act", Activation::Silu)?,
    };
    if config.unsigned("n_shared_experts")?.is_some_and(|count| count > 0) {
        return Err(fail("`n_shared_experts` is set, which cannot be run yet for this family"));
    }
    let layers = ExpertLayers { sizes, sparse, module: "mlp", modules: MODULES, shared: None };
    layers.add(names, &mut blueprint, |router, module| {
        rule.set(router, names, format!("{module}.gate.e_score_correction_bias"));
    });
    Ok(blueprint)
}

/// Sets the `RoPE` of each layer, which differs between the two types.
fn set_ropes(config: Config<'_>, dense: &mut Dense) -> Result<(), Error> {
    let head_dim = dense.head_dim;
    let rope = |kind: &str, theta: f64| -> Result<Rope, Error> {
        let Some(rope) = config.newer_rope(kind, theta)? else {
            let rotated = config.float("partial_rotary_factor")?.unwrap_or(ROTATED);
            return Ok(Rope { dimension: Some(share(head_dim, rotated)), ..Rope::plain(theta) });
        };
        Ok(Rope { dimension: config.rotated_of(kind, head_dim)?, ..rope })
    };
    let full = config.float("rope_theta")?.unwrap_or(FULL_THETA);
    let sliding = config.float("swa_rope_theta")?.unwrap_or(SLIDING_THETA);
    dense.set_ropes(&rope("full_attention", full)?, &rope("sliding_attention", sliding)?);
    Ok(())
}

/// Reads a list with 0 or 1 for each layer, as published configs have them.
fn flags(config: Config<'_>, key: &str, layers: u64) -> Result<Option<Vec<bool>>, Error> {
    let flag = |value: &Value| match value.as_u64() {
        Some(flag @ 0..=1) => Ok(flag == 1),
        _ => Err(fail(format!("`{key}` has {value}, expected 0 or 1"))),
    };
    config.per_layer(key, layers, flag)
}

/// Checks that layers with windows have the heads that the class of the model gives them.
fn check_sliding_heads(config: Config<'_>) -> Result<(), Error> {
    let pairs = [
        ("swa_num_attention_heads", "num_attention_heads", 1),
        ("swa_num_key_value_heads", "num_key_value_heads", 2),
        ("swa_head_dim", "head_dim", 1),
        ("swa_v_head_dim", "v_head_dim", 1),
    ];
    for (key, full, factor) in pairs {
        let (own, full) = (config.unsigned(key)?, config.unsigned(full)?);
        if let (Some(own), Some(full)) = (own, full)
            && own != full.saturating_mul(factor)
        {
            return Err(fail(format!("`{key}` is {own}, expected {}", full.saturating_mul(factor))));
        }
    }
    Ok(())
}
