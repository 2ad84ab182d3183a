//! `StarCoder2`: layer norms and biases, a feed-forward network without a gate, a window on all layers.

use crate::blueprint::{Activation, Blueprint, Ffn, NormKind, Plain};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "starcoder2",
    model_types: &["starcoder2"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("ffn_norm", "post_attention_layernorm"), ("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
        ..GgufForm::not_yet("starcoder2")
    },
    hugging_face: HuggingFaceForm::of("Starcoder2ForCausalLM", "starcoder2"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(2), context: 4096, tied: true, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    dense.norm_kind = NormKind::Layer;
    dense.norm_epsilon = config.float("norm_epsilon")?.unwrap_or(1e-5);
    if let Some(window) = config.unsigned("sliding_window")? {
        dense.slide(&vec![true; dense.layers.len()], window);
    }
    dense.activation = config.activation("hidden_act", Activation::GeluTanh)?;
    Ok(without_gates(dense, names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
        activation: Activation::GeluTanh,
        ..Dense::from_gguf(keys)?
    };
    Ok(without_gates(dense, names))
}

fn without_gates(dense: Dense, names: &TensorNames) -> Blueprint {
    let (width, activation) = (dense.intermediate, dense.activation);
    let mut blueprint = dense.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let own = |module: &str| projection(names, &format!("model.layers.{index}.mlp.{module}"));
        layer.ffn = Ffn::Plain(Box::new(Plain { width, activation, up: own("c_fc"), down: own("c_proj") }));
    }
    blueprint
}
