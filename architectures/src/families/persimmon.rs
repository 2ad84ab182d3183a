//! Persimmon: queries, keys and values stored head by head, norms of heads with biases, networks
//! with a squared activation and no gate.

use crate::blueprint::{Activation, Blueprint, NormKind};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::plain::{by_key_head, without_gates};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "persimmon",
    model_types: &["persimmon"],
    read_config,
    gguf: &GgufForm::not_yet("persimmon"),
    hugging_face: HuggingFaceForm::of("PersimmonForCausalLM", "persimmon"),
};

const DEFAULTS: Defaults = Defaults { context: 16_384, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    const ALL: &str = "self_attn.query_key_value";
    let mut dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
        activation: config.activation("hidden_act", Activation::ReluSquared)?,
        head_norms: config.flag("qk_layernorm")?.unwrap_or(true),
        attention_modules: [ALL, ALL, ALL, "self_attn.dense"],
        head_norm_modules: ["self_attn.q_layernorm", "self_attn.k_layernorm"],
        final_norm: "final_layernorm",
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.rotate_part(config, 2)?;
    let sizes = [dense.heads, dense.kv_heads, dense.head_dim];
    let mut blueprint = dense.blueprint(names);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        let all = projection(names, &format!("model.layers.{index}.{ALL}"));
        [attention.query, attention.key, attention.value] = by_key_head(&all, sizes);
    }
    Ok(without_gates(blueprint, names, ["dense_h_to_4h", "dense_4h_to_h"]))
}
