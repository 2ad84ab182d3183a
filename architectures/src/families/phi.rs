//! Phi 1 to 2: parallel attention and feed-forward network after one layer norm, biases everywhere.

use crate::blueprint::{Activation, Blueprint, NormKind};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, ONE_NORM, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::{with_layer_norms, without_gates};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "phi",
    model_types: &["phi"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("attn_output", "self_attn.dense"), ("ffn_up", "mlp.fc1"), ("ffn_down", "mlp.fc2")],
        ..GgufForm::not_yet("phi2")
    },
    hugging_face: HuggingFaceForm::of("PhiForCausalLM", "phi"),
};

const DEFAULTS: Defaults = LLAMA;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    if config.flag("qk_layernorm")?.unwrap_or(false) {
        return Err(fail("`qk_layernorm` is set, which cannot be run yet for this family"));
    }
    let mut dense = Dense {
        norms: ONE_NORM,
        parallel: true,
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
        final_norm: "final_layernorm",
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.rotate_part(config, 2)?;
    dense.activation = config.activation("hidden_act", Activation::GeluTanh)?;
    Ok(with_own_names(dense, names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { norms: ONE_NORM, parallel: true, activation: Activation::GeluTanh, ..with_layer_norms(keys)? };
    Ok(with_own_names(dense, names))
}

fn with_own_names(dense: Dense, names: &TensorNames) -> Blueprint {
    let mut blueprint = without_gates(dense.blueprint(names), names, ["fc1", "fc2"]);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        attention.output = projection(names, &format!("model.layers.{index}.self_attn.dense"));
    }
    blueprint
}
