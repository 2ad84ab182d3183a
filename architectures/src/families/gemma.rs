//! Gemma 1: embeddings multiplied by the root of the width, norms with 1 added, tanh approximation
//! of GELU.

use serde_json::Value as Json;

use super::llama;
use crate::blueprint::{Activation, Blueprint, HeadLayout};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::family::{Family, GgufForm, HuggingFaceForm, Key};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "gemma",
    model_types: &["gemma"],
    read_config,
    gguf: &GgufForm {
        architecture: "gemma",
        also: &[],
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        model_names: &[],
        layout: HeadLayout::Half,
        attention_scale: Some(llama::by_head_size),
        keys,
    },
    hugging_face: HuggingFaceForm {
        class: "GemmaForCausalLM",
        model_type: "gemma",
        is_written: true,
        activation_key: "hidden_activation",
        norm_offset: 1.0,
        layout: HeadLayout::Half,
        fields,
    },
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(16), head_dim: Some(256), context: 8192, theta: 10_000.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    // The first configs have `hidden_act` `gelu` but mean the tanh approximation; newer configs
    // state that in `hidden_activation`.
    let activation = match config.text("hidden_activation").or(config.text("hidden_act")) {
        None | Some("gelu") => Activation::GeluTanh,
        Some(_) if config.value("hidden_activation").is_some() => {
            config.activation("hidden_activation", Activation::GeluTanh)?
        }
        Some(_) => config.activation("hidden_act", Activation::GeluTanh)?,
    };
    let dense = Dense { activation, norm_offset: 1.0, ..Dense::from_config(config, DEFAULTS)? };
    Ok(with_scaled_embedding(dense).blueprint(names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { activation: Activation::GeluTanh, ..Dense::from_gguf(keys)? };
    Ok(with_scaled_embedding(dense).blueprint(names))
}

/// Multiplies embeddings by the root of their width.
pub(super) fn with_scaled_embedding(dense: Dense) -> Dense {
    Dense { embedding_scale: Some((dense.hidden as f64).sqrt()), ..dense }
}

fn keys(blueprint: &Blueprint) -> Result<Vec<Key>, String> {
    llama::only_activation(blueprint, Activation::GeluTanh, "GELU (tanh)")?;
    llama::only_full_attention(blueprint)?;
    llama::only_usual_frequencies(blueprint)?;
    Ok(Vec::new())
}

fn fields(blueprint: &Blueprint, has: &dyn Fn(&str) -> bool) -> Vec<(&'static str, Json)> {
    let activation = blueprint.gated().next().map_or(Activation::GeluTanh, |gated| gated.activation);
    vec![llama::attention_bias(has), ("hidden_act", activation.name().into())]
}
