//! LFM3: gated short convolutions, and full or windowed attention with norms and gates of heads.

use serde_json::Value;

use super::lfm2;
use crate::blueprint::{AttentionGate, Blueprint, Mixer};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, NormNames, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, Rope, RopeScaling, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "lfm3",
    model_types: &["lfm3"],
    read_config,
    gguf: &GgufForm::not_yet("lfm3"),
    hugging_face: HuggingFaceForm::of("Lfm3ForCausalLM", "lfm3"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), head_dim: Some(128), context: 128_000, theta: FULL_THETA };
const KERNEL: u64 = 7;
const WINDOW: u64 = 256;
const FULL_THETA: f64 = 1_000_000.0;
const SLIDING_THETA: f64 = 10_000.0;
/// Share of the pairs that layers with full attention rotate.
const SHARE: f64 = 0.5;

/// Mixer of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MixerKind {
    Convolution,
    Full,
    Sliding,
}

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let is_normed_after = config.flag("use_sandwich_norm")?.unwrap_or(true);
    let after = |name: &'static str| is_normed_after.then_some(name);
    let mut dense = Dense {
        norm_epsilon: config.float("norm_eps")?.unwrap_or(1e-5),
        head_norms: true,
        norms: NormNames {
            before_mixer: Some("operator_norm"),
            after_mixer: after("post_operator_norm"),
            before_ffn: Some("ffn_norm"),
            after_ffn: after("post_ffn_norm"),
        },
        network_modules: ["feed_forward.w1", "feed_forward.w3", "feed_forward.w2"],
        final_norm: "embedding_norm",
        ..Dense::from_config(config, DEFAULTS)?
    };
    let kinds = kinds(config, dense.layers.len())?;
    let window = config.unsigned("sliding_window")?.unwrap_or(WINDOW);
    let scaling = RopeScaling::Proportional { share: SHARE, factor: 1.0 };
    let full = config.newer_rope("full_attention", FULL_THETA)?;
    let full = full.unwrap_or_else(|| Rope::plain(FULL_THETA).scaled(scaling, 1.0));
    let sliding = config.newer_rope("sliding_attention", SLIDING_THETA)?.unwrap_or_else(|| Rope::plain(SLIDING_THETA));
    dense.slide(&kinds.iter().map(|kind| *kind == MixerKind::Sliding).collect::<Vec<_>>(), window);
    dense.set_ropes(&full, &sliding);
    let (hidden, kernel) = (dense.hidden, config.unsigned("conv_L_cache")?.unwrap_or(KERNEL));
    let is_gated = config.flag("use_attention_gate")?.unwrap_or(true);
    let mut blueprint = dense.blueprint(names);
    for (index, (layer, kind)) in blueprint.layers.iter_mut().zip(&kinds).enumerate() {
        let prefix = format!("model.layers.{index}");
        if *kind == MixerKind::Convolution {
            let own = lfm2::convolution(names, &format!("{prefix}.conv"), hidden, kernel);
            layer.mixer = Mixer::ShortConv(Box::new(own));
        } else if let Mixer::Attention(attention) = &mut layer.mixer {
            let gate = projection(names, &format!("{prefix}.self_attn.gate_proj"));
            attention.gate = is_gated.then(|| AttentionGate { per_head: true, ..AttentionGate::sigmoid(gate) });
        }
    }
    Ok(blueprint)
}

/// Returns the kinds of the layers. Without a list, the third layer of four has full attention, and
/// the first of four has a window, except for the first of all.
fn kinds(config: Config<'_>, layers: usize) -> Result<Vec<MixerKind>, Error> {
    let usual = |layer: usize| match layer % 4 {
        2 => MixerKind::Full,
        0 if layer > 0 => MixerKind::Sliding,
        _ => MixerKind::Convolution,
    };
    let kind = |kind: &Value| match kind.as_str() {
        Some("conv") => Ok(MixerKind::Convolution),
        Some("full_attention") => Ok(MixerKind::Full),
        Some("sliding_attention") => Ok(MixerKind::Sliding),
        _ => Err(fail(format!("`layer_types` has {kind}, expected conv, full_attention or sliding_attention"))),
    };
    let listed = config.per_layer("layer_types", layers as u64, kind)?;
    Ok(listed.unwrap_or_else(|| (0..layers).map(usual).collect()))
}
