//! dots.llm1: norms of heads, experts with sigmoid scores after dense first layers.

use super::deepseek_v2::add_experts;
use crate::blueprint::{Blueprint, RouterScores};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::experts::{self, SigmoidRouter};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "dots1",
    model_types: &["dots1"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::PRE_NORMS, ..GgufForm::not_yet("dots1") },
    hugging_face: HuggingFaceForm::of("Dots1ForCausalLM", "dots1"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(32), ..LLAMA };
const WINDOW: u64 = 4096;
/// Index of the first layer with a window.
const FIRST_SLIDING: u64 = 62;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense { head_norms: true, ..Dense::from_config(config, DEFAULTS)? };
    slide(&mut dense, config)?;
    let mut blueprint = dense.blueprint(names);
    let rule = SigmoidRouter::from_config(config, false, 1.0)?;
    add_experts(config, names, &mut blueprint, 0, |router, module| {
        rule.set(router, names, format!("{module}.gate.e_score_correction_bias"));
    })?;
    Ok(blueprint)
}

/// Sets the window of the layers that `layer_types` names, or without that list, from layer
/// `max_window_layers` on.
fn slide(dense: &mut Dense, config: Config<'_>) -> Result<(), Error> {
    let layers = dense.layers.len() as u64;
    let first = config.unsigned("max_window_layers")?.unwrap_or(FIRST_SLIDING);
    let slides = config.sliding_layers(layers)?.unwrap_or_else(|| (0..layers).map(|layer| layer >= first).collect());
    if !config.is_null("sliding_window") {
        dense.slide(&slides, config.unsigned("sliding_window")?.unwrap_or(WINDOW));
    }
    Ok(())
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = Dense { head_norms: true, ..Dense::from_gguf(keys)? }.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, false, RouterScores::Sigmoid)?;
    Ok(blueprint)
}
