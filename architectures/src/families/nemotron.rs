//! Minitron and Nemotron 4: layer norms whose weights are stored minus 1, `RoPE` on half of each
//! head, networks with a squared activation and no gate.

use crate::blueprint::{Activation, Blueprint, NormKind};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::{with_layer_norms, without_gates};
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "nemotron",
    model_types: &["nemotron"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::PRE_NORMS, ..GgufForm::not_yet("nemotron") },
    hugging_face: HuggingFaceForm::of("NemotronForCausalLM", "nemotron"),
};

const DEFAULTS: Defaults = Defaults { context: 4096, ..LLAMA };
const MODULES: [&str; 2] = ["up_proj", "down_proj"];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(&[("head_dim", "kv_channels")]);
    let mut dense = Dense {
        norm_kind: NormKind::Layer,
        norm_offset: 1.0,
        norm_epsilon: config.float("norm_eps")?.unwrap_or(1e-5),
        activation: config.activation("hidden_act", Activation::ReluSquared)?,
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.rotate_part(config, 2)?;
    Ok(without_gates(dense.blueprint(names), names, MODULES))
}

/// Reads GGUF metadata. The converter adds the 1 to the weights of norms.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { activation: Activation::ReluSquared, ..with_layer_norms(keys)? };
    Ok(without_gates(dense.blueprint(names), names, MODULES))
}
