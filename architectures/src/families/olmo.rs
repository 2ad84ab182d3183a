//! `OLMo` 1: a Llama whose layer norms have no weights, with clipped projections.

use crate::blueprint::{Blueprint, HeadLayout, Norm, NormKind};
use crate::config_json::Config;
use crate::dense::{Dense, LLAMA, unweighted_norm};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "olmo",
    model_types: &["olmo"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), layout: HeadLayout::Interleaved, ..GgufForm::not_yet("olmo") },
    hugging_face: HuggingFaceForm::of("OlmoForCausalLM", "olmo"),
};

/// Epsilon of the norms; the class has no other.
const EPSILON: f64 = 1e-5;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { norm_epsilon: EPSILON, ..Dense::from_config(config, LLAMA)? };
    Ok(with_norms(dense, names, config.float("clip_qkv")?))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let clip = keys.float("attention.clamp_kqv")?.filter(|clip| *clip != 0.0);
    let mut dense = Dense { layout: HeadLayout::Interleaved, ..Dense::from_gguf(keys)? };
    dense.norm_epsilon = keys.float("attention.layer_norm_epsilon")?.unwrap_or(EPSILON);
    Ok(with_norms(dense, names, clip))
}

/// Returns the blueprint with norms without weights.
fn with_norms(dense: Dense, names: &TensorNames, clip: Option<f64>) -> Blueprint {
    let norm = Some(Norm { kind: NormKind::Layer, ..unweighted_norm(dense.norm_epsilon) });
    let mut blueprint = dense.blueprint(names);
    for layer in &mut blueprint.layers {
        (layer.mixer_residual.before, layer.ffn_residual.before) = (norm.clone(), norm.clone());
    }
    blueprint.norm = norm;
    blueprint.attentions_mut().for_each(|attention| attention.clip = clip);
    blueprint
}
