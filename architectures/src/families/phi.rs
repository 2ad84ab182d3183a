//! Phi 1 to 2: attention and feed-forward network beside each other behind one layer norm, biases everywhere.

use crate::blueprint::{Activation, Blueprint, Ffn, NormKind, Plain};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, ONE_NORM, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
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
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
        final_norm: "final_layernorm",
        ..Dense::from_config(config, DEFAULTS)?
    };
    super::glm4::half_rotated(&mut dense, config)?;
    dense.activation = config.activation("hidden_act", Activation::GeluTanh)?;
    Ok(beside_each_other(dense, names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense {
        norms: ONE_NORM,
        norm_kind: NormKind::Layer,
        norm_epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
        activation: Activation::GeluTanh,
        ..Dense::from_gguf(keys)?
    };
    Ok(beside_each_other(dense, names))
}

/// The parts of all layers are added together, and the networks have no gates.
fn beside_each_other(dense: Dense, names: &TensorNames) -> Blueprint {
    let (width, activation) = (dense.intermediate, dense.activation);
    let mut blueprint = dense.blueprint(names);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        attention.output = projection(names, &format!("model.layers.{index}.self_attn.dense"));
    }
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let own = |module: &str| projection(names, &format!("model.layers.{index}.mlp.{module}"));
        layer.ffn = Ffn::Plain(Box::new(Plain { width, activation, up: own("fc1"), down: own("fc2") }));
        layer.parallel = true;
    }
    blueprint
}
