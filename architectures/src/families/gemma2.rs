//! Gemma 2: soft caps on scores and logits, norms before and after the parts of a layer, windows in
//! every second layer.

use super::gemma::with_scaled_embedding;
use crate::blueprint::{Activation, Blueprint};
use crate::config_json::Config;
use crate::dense::{ALL_NORMS, Defaults, Dense, NormNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "gemma2",
    model_types: &["gemma2"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::ALL_NORMS, ..GgufForm::not_yet("gemma2") },
    hugging_face: HuggingFaceForm::of("Gemma2ForCausalLM", "gemma2"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), head_dim: Some(256), context: 8192, theta: 10_000.0 };
/// Default soft caps.
const SCORES: f64 = 50.0;
const LOGITS: f64 = 30.0;
/// Number of layers of the model whose scores are scaled by the width divided by the number of
/// heads, rather than by the head size.
const LAYERS_OF_27B: usize = 46;
/// Every second layer has full attention.
const PATTERN: u64 = 2;
const WINDOW: u64 = 4096;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    with_norms(config, names, ALL_NORMS)
}

/// Returns the model of a config whose layers have these norms.
pub(super) fn with_norms(config: Config<'_>, names: &TensorNames, norms: NormNames) -> Result<Blueprint, Error> {
    let mut dense = Dense {
        activation: config.activation("hidden_activation", Activation::GeluTanh)?,
        norm_offset: 1.0,
        norms,
        attention_scale: config.float("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.slide_by_config(config, PATTERN, WINDOW)?;
    // `null` means no cap; a missing key means the default of the class.
    let cap = |key: &str, default| {
        Ok::<_, Error>(if config.is_null(key) { None } else { Some(config.float(key)?.unwrap_or(default)) })
    };
    let caps = [cap("attn_logit_softcapping", SCORES)?, cap("final_logit_softcapping", LOGITS)?];
    Ok(capped(dense, names, caps))
}

/// Reads GGUF metadata. llama.cpp's constants apply to values that files omit: the scale of scores,
/// and sliding in every second layer.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense { activation: Activation::GeluTanh, norms: ALL_NORMS, ..Dense::from_gguf(keys)? };
    if dense.layers.len() == LAYERS_OF_27B {
        dense.attention_scale = (dense.hidden as f64 / dense.heads as f64).powf(-0.5);
    }
    dense.slide_by_keys(keys, PATTERN, WINDOW)?;
    let cap = |key: &str, default| Ok::<_, Error>(Some(keys.float(key)?.unwrap_or(default)).filter(|cap| *cap != 0.0));
    let caps = [cap("attn_logit_softcapping", SCORES)?, cap("final_logit_softcapping", LOGITS)?];
    Ok(capped(dense, names, caps))
}

fn capped(dense: Dense, names: &TensorNames, [scores, logits]: [Option<f64>; 2]) -> Blueprint {
    let mut blueprint = with_scaled_embedding(dense).blueprint(names);
    for attention in blueprint.attentions_mut() {
        attention.soft_cap = scores;
    }
    if let Some(output) = &mut blueprint.output {
        output.soft_cap = logits;
    }
    blueprint
}
