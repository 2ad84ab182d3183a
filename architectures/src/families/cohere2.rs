//! Command R7B and A: parallel attention and feed-forward network after one norm, `RoPE` on sliding
//! layers only.

use crate::blueprint::{Blueprint, HeadLayout, NormKind};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, ONE_NORM};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::with_layer_norms;
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
    hugging_face: HuggingFaceForm::of("Cohere2ForCausalLM", "cohere2").interleaved(),
};

pub(super) const DEFAULTS: Defaults = Defaults { context: 8192, ..LLAMA };
/// Every fourth layer has full attention.
pub(super) const PATTERN: u64 = 4;
pub(super) const WINDOW: u64 = 4096;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    if config.flag("use_qk_norm")?.unwrap_or(false) {
        return Err(fail("`use_qk_norm` is set, which cannot be run yet for this family"));
    }
    let mut dense = dense(config, DEFAULTS)?;
    dense.slide_by_config(config, config.step("sliding_window_pattern", PATTERN)?, WINDOW)?;
    dense.rotate_sliding_layers_only();
    Ok(dense.blueprint(names))
}

/// Reads the parameters of a config, without windows.
pub(super) fn dense(config: Config<'_>, defaults: Defaults) -> Result<Dense, Error> {
    Ok(Dense {
        norms: ONE_NORM,
        parallel: true,
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
        output_scale: Some(config.float("logit_scale")?.unwrap_or(0.0625)),
        layout: HeadLayout::Interleaved,
        ..Dense::from_config(config, defaults)?
    })
}

/// If a file omits the pattern, llama.cpp's constant applies.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = dense_of_gguf(keys)?;
    dense.rotate_sliding_layers_only();
    Ok(dense.blueprint(names))
}

/// Reads the parameters of a GGUF file, with `RoPE` on all layers.
pub(super) fn dense_of_gguf(keys: Keys<'_>) -> Result<Dense, Error> {
    let mut dense = Dense {
        norms: ONE_NORM,
        parallel: true,
        output_scale: keys.float("logit_scale")?.filter(|scale| *scale != 0.0),
        layout: HeadLayout::Interleaved,
        ..with_layer_norms(keys)?
    };
    dense.slide_by_keys(keys, PATTERN, WINDOW)?;
    Ok(dense)
}
