//! `MiMo` V2 Flash: windows with sinks and twice the key heads on most layers, short values, experts
//! with sigmoid scores.

use super::deepseek_v2::add_experts;
use crate::blueprint::{Blueprint, Tensor};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense};
use crate::experts::SigmoidRouter;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, Rope, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "mimo_v2_flash",
    model_types: &["mimo_v2_flash"],
    read_config,
    gguf: &GgufForm::not_yet("mimo2"),
    hugging_face: HuggingFaceForm::of("MiMoV2FlashForCausalLM", "mimo_v2_flash"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), head_dim: Some(192), context: 262_144, theta: FULL_THETA };
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
    let config = config.with_defaults(OF_CLASS);
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    dense.value_dim = config.unsigned("v_head_dim")?.unwrap_or(VALUE_DIM);
    let layers = dense.layers.len() as u64;
    let usual = || (0..layers).map(|layer| layer > 0 && !(layer + 1).is_multiple_of(PATTERN)).collect();
    let slides: Vec<bool> = config.sliding_layers(layers)?.unwrap_or_else(usual);
    let window = match config.unsigned("sliding_window_size")? {
        // This key counts the positions before a token.
        Some(before) => before.saturating_add(1),
        None => config.unsigned("sliding_window")?.unwrap_or(WINDOW),
    };
    dense.slide(&slides, window);
    let head_dim = dense.head_dim;
    let rope = |kind: &str, theta: f64| -> Result<Rope, Error> {
        let Some(rope) = config.newer_rope(kind, theta)? else {
            return Ok(Rope { dimension: Some(crate::config_json::share(head_dim, ROTATED)), ..Rope::plain(theta) });
        };
        Ok(Rope { dimension: config.rotated_of(kind, head_dim)?, ..rope })
    };
    let (full, sliding) = (rope("full_attention", FULL_THETA)?, rope("sliding_attention", SLIDING_THETA)?);
    for layer in &mut dense.layers {
        layer.rope = Some(if layer.window.is_some() { sliding.clone() } else { full.clone() });
    }
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
    add_experts(config, names, &mut blueprint, 1, |router, module| {
        rule.set(router, names, format!("{module}.gate.e_score_correction_bias"));
    })?;
    Ok(blueprint)
}
