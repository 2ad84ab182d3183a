//! Command R7B and A: attention and feed-forward network beside each other behind one norm, `RoPE` on sliding layers only.

use crate::blueprint::{Blueprint, HeadLayout, NormKind};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, ONE_NORM, sliding_but_every};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "cohere2",
    model_types: &["cohere2"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[],
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("cohere2")
    },
    hugging_face: HuggingFaceForm::of("Cohere2ForCausalLM", "cohere2"),
};

const DEFAULTS: Defaults = Defaults { context: 8192, tied: true, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    if config.flag("use_qk_norm")?.unwrap_or(false) {
        return Err(fail("`use_qk_norm` is set, which cannot be run yet for this family"));
    }
    let mut dense = Dense {
        norms: ONE_NORM,
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
        output_scale: Some(config.float("logit_scale")?.unwrap_or(0.0625)),
        layout: HeadLayout::Interleaved,
        ..Dense::from_config(config, DEFAULTS)?
    };
    let layers = dense.layers.len() as u64;
    let slides = match config.sliding_layers(layers)? {
        Some(slides) => slides,
        None => sliding_but_every(config.unsigned("sliding_window_pattern")?.unwrap_or(4).max(1), layers),
    };
    dense.slide(&slides, config.unsigned("sliding_window")?.unwrap_or(4096));
    Ok(beside_each_other(dense, names))
}

/// A pattern that a file leaves out is llama.cpp's constant.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense {
        norms: ONE_NORM,
        norm_kind: NormKind::Layer,
        norm_epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
        output_scale: keys.float("logit_scale")?.filter(|scale| *scale != 0.0),
        layout: HeadLayout::Interleaved,
        ..Dense::from_gguf(keys)?
    };
    let layers = dense.layers.len() as u64;
    let slides = keys.sliding_layers(layers)?.unwrap_or_else(|| sliding_but_every(4, layers));
    dense.slide(&slides, keys.unsigned("attention.sliding_window")?.unwrap_or(4096));
    Ok(beside_each_other(dense, names))
}

/// Layers without a window have no `RoPE`; the parts of all layers are added together.
fn beside_each_other(mut dense: Dense, names: &TensorNames) -> Blueprint {
    for layer in dense.layers.iter_mut().filter(|layer| layer.window.is_none()) {
        layer.rope = None;
    }
    let mut blueprint = dense.blueprint(names);
    for layer in &mut blueprint.layers {
        layer.parallel = true;
    }
    blueprint
}
