//! `StarCoder2`: layer norms and biases, a feed-forward network without a gate, a window on all
//! layers.

use crate::blueprint::{Activation, Blueprint, NormKind};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::{with_layer_norms, without_gates};
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

const DEFAULTS: Defaults = Defaults { kv_heads: Some(2), context: 4096, ..LLAMA };
const MODULES: [&str; 2] = ["c_fc", "c_proj"];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    dense.norm_kind = NormKind::Layer;
    dense.norm_epsilon = config.float("norm_epsilon")?.unwrap_or(1e-5);
    dense.slide_all(config, None)?;
    dense.activation = config.activation("hidden_act", Activation::GeluTanh)?;
    Ok(without_gates(dense.blueprint(names), names, MODULES))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { activation: Activation::GeluTanh, ..with_layer_norms(keys)? };
    Ok(without_gates(dense.blueprint(names), names, MODULES))
}
