//! Jais 2: layer norms, and networks with a squared activation and no gate.

use crate::blueprint::{Activation, Blueprint, NormKind};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::{with_layer_norms, without_gates};
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "jais2",
    model_types: &["jais2"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::PRE_NORMS, ..GgufForm::not_yet("jais2") },
    hugging_face: HuggingFaceForm::of("Jais2ForCausalLM", "jais2"),
};

const DEFAULTS: Defaults = Defaults { context: 8192, ..LLAMA };
const MODULES: [&str; 2] = ["up_proj", "down_proj"];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
        activation: config.activation("hidden_act", Activation::ReluSquared)?,
        ..Dense::from_config(config, DEFAULTS)?
    };
    Ok(without_gates(dense.blueprint(names), names, MODULES))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { activation: Activation::ReluSquared, ..with_layer_norms(keys)? };
    Ok(without_gates(dense.blueprint(names), names, MODULES))
}
