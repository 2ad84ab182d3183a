//! Granite 3: a Llama with four factors: of embeddings, scores, outputs of layer parts, and logits.

use serde_json::Value as Json;

use super::llama;
use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::{Config, fail};
use crate::dense::{self, Dense};
use crate::family::{Family, GgufForm, HuggingFaceForm, Key};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "granite",
    model_types: &["granite"],
    read_config,
    gguf: &GgufForm {
        architecture: "granite",
        also: &[],
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        model_names: &[],
        layout: HeadLayout::Interleaved,
        attention_scale: None,
        keys,
    },
    hugging_face: HuggingFaceForm {
        class: "GraniteForCausalLM",
        model_type: "granite",
        is_written: true,
        activation_key: "hidden_act",
        norm_offset: 0.0,
        layout: HeadLayout::Half,
        fields,
    },
};

pub(super) fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(dense(config)?.blueprint(names))
}

/// Reads the parameters of a config.
pub(super) fn dense(config: Config<'_>) -> Result<Dense, Error> {
    let number = |key: &str| Ok::<_, Error>(config.float(key)?.unwrap_or(1.0));
    let logits = number("logits_scaling")?;
    if logits <= 0.0 {
        return Err(fail(format!("`logits_scaling` is {logits}, expected a positive number")));
    }
    Ok(Dense {
        attention_scale: number("attention_multiplier")?,
        embedding_scale: Some(number("embedding_multiplier")?),
        residual_scale: Some(number("residual_multiplier")?),
        output_scale: Some(logits.recip()),
        ..Dense::from_config(config, dense::LLAMA)?
    })
}

/// Reads GGUF metadata. A factor of 0 means none.
pub(super) fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(dense_of_gguf(keys)?.blueprint(names))
}

/// Reads the parameters of a GGUF file.
pub(super) fn dense_of_gguf(keys: Keys<'_>) -> Result<Dense, Error> {
    let number = |key: &str| Ok::<_, Error>(keys.float(key)?.filter(|number| *number != 0.0));
    let mut dense = Dense {
        layout: HeadLayout::Interleaved,
        embedding_scale: number("embedding_scale")?,
        residual_scale: number("residual_scale")?,
        output_scale: number("logit_scale")?.map(f64::recip),
        ..Dense::from_gguf(keys)?
    };
    // In files of this family, the key states whether there is `RoPE` at all.
    if keys.flag("rope.scaling.finetuned")? == Some(false) {
        dense.layers.iter_mut().for_each(|layer| layer.rope = None);
    }
    Ok(dense)
}

/// Returns the factors in the order of the converter. The last one is the divisor of the logits.
fn multipliers(blueprint: &Blueprint) -> [f64; 4] {
    let attention = blueprint.attentions().next().map_or(1.0, |attention| attention.scale);
    let residual = blueprint.layers.first().and_then(|layer| layer.ffn_residual.scale);
    let of = |scale: Option<f64>| scale.unwrap_or(1.0);
    let logits = of(blueprint.output.as_ref().and_then(|output| output.scale)).recip();
    // The reader inverted it; files store it as float32.
    [attention, of(blueprint.embedding.scale), of(residual), f64::from(logits as f32)]
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

#[cfg(test)]
mod tests {
    use formats::Gguf;
    use formats::gguf::{OwnedValue, write_header};

    use super::*;
    use crate::{Document, describe};

    #[test]
    fn a_file_may_say_that_nothing_is_rotated() {
        for (finetuned, rotated) in [(None, true), (Some(true), true), (Some(false), false)] {
            let number = |key: &str, number: u32| (format!("granite.{key}"), OwnedValue::from(number));
            let mut keys = vec![
                ("general.architecture".to_owned(), OwnedValue::from("granite")),
                number("block_count", 2),
                number("context_length", 64),
                number("embedding_length", 64),
                number("feed_forward_length", 64),
                number("attention.head_count", 4),
                number("vocab_size", 32),
                ("granite.logit_scale".to_owned(), 49.0f32.into()),
            ];
            keys.extend(finetuned.map(|flag| ("granite.rope.scaling.finetuned".to_owned(), OwnedValue::from(flag))));
            let header = write_header(&keys, &[]).expect("a header");
            let gguf = Gguf::parse_header(&header.bytes).expect("it is read");
            let blueprint = describe(Document::Gguf(&gguf), &TensorNames::default()).expect("a model").blueprint;
            assert!(blueprint.attentions().all(|attention| attention.rope.is_some() == rotated), "{finetuned:?}");
            assert!(multipliers(&blueprint)[3].to_bits() == 49.0f64.to_bits(), "it comes back as it was");
        }
    }
}
