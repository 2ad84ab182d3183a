//! Helium: a Llama with interleaved `RoPE` pairs.

use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "helium",
    model_types: &["helium"],
    read_config,
    // The converter writes Llama's architecture.
    gguf: &GgufForm::not_yet("llama"),
    hugging_face: HuggingFaceForm::of("HeliumForCausalLM", "helium").interleaved(),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(20), head_dim: Some(128), context: 4096, theta: 100_000.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense {
        layout: HeadLayout::Interleaved,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-8),
        ..Dense::from_config(config, DEFAULTS)?
    };
    Ok(dense.blueprint(names))
}
