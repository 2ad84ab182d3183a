//! Granite 3: a Llama with four multipliers, of embeddings, scores, what layers add, and logits.

use serde_json::Value as Json;

use super::llama;
use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::{Config, fail};
use crate::dense::Dense;
use crate::family::{Family, GgufForm, HuggingFaceForm, Key};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, names};

pub(super) const FAMILY: Family = Family {
    name: "granite",
    model_types: &["granite"],
    read_config,
    gguf: &GgufForm {
        architecture: "granite",
        read: read_gguf,
        names: names::PRE_NORMS,
        layout: HeadLayout::Interleaved,
        attention_scale: None,
        keys,
    },
    hugging_face: HuggingFaceForm {
        class: "GraniteForCausalLM",
        model_type: "granite",
        activation_key: "hidden_act",
        norm_offset: 0.0,
        fields,
    },
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let number = |key: &str| Ok::<_, Error>(config.float(key)?.unwrap_or(1.0));
    let logits = number("logits_scaling")?;
    if logits <= 0.0 {
        return Err(fail(format!("`logits_scaling` is {logits}, expected a positive number")));
    }
    let dense = Dense {
        attention_scale: number("attention_multiplier")?,
        embedding_scale: Some(number("embedding_multiplier")?),
        residual_scale: Some(number("residual_multiplier")?),
        output_scale: Some(logits.recip()),
        ..Dense::from_config(config)?
    };
    Ok(dense.blueprint(names))
}

/// A multiplier of 0 is none.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let number = |key: &str| Ok::<_, Error>(keys.float(key)?.filter(|number| *number != 0.0));
    let dense = Dense {
        layout: HeadLayout::Interleaved,
        embedding_scale: number("embedding_scale")?,
        residual_scale: number("residual_scale")?,
        output_scale: number("logit_scale")?.map(f64::recip),
        ..Dense::from_gguf(keys)?
    };
    Ok(dense.blueprint(names))
}

/// The multipliers in the order of the converter, logits' as what they are divided by.
fn multipliers(blueprint: &Blueprint) -> [f64; 4] {
    let attention = blueprint.attentions().next().map_or(1.0, |attention| attention.scale);
    let residual = blueprint.layers.first().and_then(|layer| layer.ffn_residual.scale);
    let of = |scale: Option<f64>| scale.unwrap_or(1.0);
    [attention, of(blueprint.embedding.scale), of(residual), of(blueprint.output.scale).recip()]
}

fn keys(blueprint: &Blueprint) -> Result<Vec<Key>, String> {
    llama::no_keys(blueprint)?;
    let names = ["attention.scale", "embedding_scale", "residual_scale", "logit_scale"];
    Ok(names.into_iter().zip(multipliers(blueprint)).map(|(name, number)| (name, (number as f32).into())).collect())
}

fn fields(blueprint: &Blueprint, has: &dyn Fn(&str) -> bool) -> Vec<(&'static str, Json)> {
    let names = ["attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"];
    let multipliers = names.into_iter().zip(multipliers(blueprint)).map(|(name, number)| (name, number.into()));
    multipliers.chain(llama::biases(blueprint, has)).collect()
}
