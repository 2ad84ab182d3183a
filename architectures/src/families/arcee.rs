//! Arcee AFM: a Llama whose feed-forward networks have no gate and a squared activation.

use super::llama;
use crate::blueprint::{Activation, Blueprint, HeadLayout};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::without_gates;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "arcee",
    model_types: &["arcee"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        layout: HeadLayout::Interleaved,
        attention_scale: Some(llama::by_head_size),
        ..GgufForm::not_yet("arcee")
    },
    hugging_face: HuggingFaceForm::of("ArceeForCausalLM", "arcee"),
};

const DEFAULTS: Defaults = Defaults { context: 4096, ..LLAMA };
const MODULES: [&str; 2] = ["up_proj", "down_proj"];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense {
        activation: config.activation("hidden_act", Activation::ReluSquared)?,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    Ok(without_gates(dense.blueprint(names), names, MODULES))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense =
        Dense { activation: Activation::ReluSquared, layout: HeadLayout::Interleaved, ..Dense::from_gguf(keys)? };
    Ok(without_gates(dense.blueprint(names), names, MODULES))
}
