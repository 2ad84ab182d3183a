//! OPT: learned positions with two unused rows, networks without gates.

use crate::blueprint::{Activation, Blueprint, NormKind, PositionTable, Positions, Tensor};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, NormNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::plain::without_gates_in;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "opt",
    model_types: &["opt"],
    read_config,
    gguf: &GgufForm::not_yet("opt"),
    hugging_face: HuggingFaceForm::of("OPTForCausalLM", "opt"),
};

const KEYS: &[(&str, &str)] = &[("intermediate_size", "ffn_dim"), ("hidden_act", "activation_function")];
const DEFAULTS: Defaults = LLAMA;
pub(super) const NORMS: NormNames = NormNames {
    before_mixer: Some("self_attn_layer_norm"),
    after_mixer: None,
    before_ffn: Some("final_layer_norm"),
    after_ffn: None,
};
/// Names of the projections of attention.
pub(super) const ATTENTION: [&str; 4] =
    ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"];
/// Rows of the position embedding before the row of the first position.
pub(super) const OFFSET: u64 = 2;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    for (key, usual) in
        [("do_layer_norm_before", true), ("_remove_final_layer_norm", false), ("layer_norm_elementwise_affine", true)]
    {
        if config.flag(key)?.unwrap_or(usual) != usual {
            return Err(fail(format!("`{key}` is {}, which cannot be run yet", !usual)));
        }
    }
    let config = config.with_other_keys(KEYS);
    let mut dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: 1e-5,
        activation: config.activation("hidden_act", Activation::Relu)?,
        norms: NORMS,
        root: "model.decoder.",
        attention_modules: ATTENTION,
        final_norm: "final_layer_norm",
        ..Dense::from_config(config, DEFAULTS)?
    };
    if config.unsigned("word_embed_proj_dim")?.is_some_and(|width| width != dense.hidden) {
        return Err(fail("`word_embed_proj_dim` is not `hidden_size`: projected embeddings cannot be run yet"));
    }
    dense.layers.iter_mut().for_each(|layer| layer.rope = None);
    let mut blueprint = without_gates_in(dense.blueprint(names), names, "model.decoder.layers", ["fc1", "fc2"]);
    blueprint.embedding.positions = Some(Positions {
        table: PositionTable::Learned(Tensor::named("model.decoder.embed_positions.weight")),
        rows: blueprint.context.saturating_add(OFFSET),
        offset: OFFSET,
    });
    Ok(blueprint)
}
