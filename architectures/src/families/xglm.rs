//! XGLM: computed positions, networks without gates.

use super::opt;
use crate::blueprint::{Activation, Blueprint, NormKind, PositionTable, Positions};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::plain::without_gates_in;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "xglm",
    model_types: &["xglm"],
    read_config,
    gguf: &GgufForm::not_yet("xglm"),
    hugging_face: HuggingFaceForm::of("XGLMForCausalLM", "xglm"),
};

const KEYS: &[(&str, &str)] = &[
    ("hidden_size", "d_model"),
    ("num_attention_heads", "attention_heads"),
    ("num_hidden_layers", "num_layers"),
    ("intermediate_size", "ffn_dim"),
    ("hidden_act", "activation_function"),
];
const DEFAULTS: Defaults = LLAMA;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(KEYS);
    let mut dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: 1e-5,
        activation: config.activation("hidden_act", Activation::Gelu)?,
        norms: opt::NORMS,
        attention_modules: opt::ATTENTION,
        final_norm: "layer_norm",
        ..Dense::from_config(config, DEFAULTS)?
    };
    if config.flag("scale_embedding")?.unwrap_or(true) {
        dense.embedding_scale = Some((dense.hidden as f64).sqrt());
    }
    dense.layers.iter_mut().for_each(|layer| layer.rope = None);
    let mut blueprint = without_gates_in(dense.blueprint(names), names, "model.layers", ["fc1", "fc2"]);
    blueprint.embedding.positions = Some(Positions {
        table: PositionTable::Sinusoids,
        rows: blueprint.context.saturating_add(opt::OFFSET),
        offset: opt::OFFSET,
    });
    Ok(blueprint)
}
