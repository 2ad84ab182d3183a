//! `SmolLM` 3: a Llama in which some layers have no `RoPE`.

use serde_json::{Value as Json, json};

use super::{llama, qwen2};
use crate::blueprint::{Activation, Blueprint, HeadLayout};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense};
use crate::family::{Family, GgufForm, HuggingFaceForm, Key};
use crate::gguf_keys::Keys;
use crate::gguf_keys::all_but_every;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "smollm3",
    model_types: &["smollm3"],
    read_config,
    gguf: &GgufForm {
        architecture: "smollm3",
        also: &[],
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        model_names: &[],
        layout: HeadLayout::Interleaved,
        attention_scale: Some(llama::by_head_size),
        keys,
    },
    hugging_face: HuggingFaceForm {
        class: "SmolLM3ForCausalLM",
        model_type: "smollm3",
        is_written: true,
        activation_key: "hidden_act",
        norm_offset: 0.0,
        layout: HeadLayout::Half,
        fields,
    },
};

/// By default, every fourth layer has no `RoPE`; GGUF files cannot express anything else.
const INTERVAL: u64 = 4;
const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), head_dim: None, context: 32_768, theta: 2_000_000.0 };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    let layers = dense.layers.len() as u64;
    let rotated = rotated_layers(config, layers)?;
    dense.rotate_only(&rotated);
    let used = config.flag("use_sliding_window")?.unwrap_or(false);
    if let Some(window) = config.unsigned("sliding_window")?.filter(|window| used && *window > 0) {
        let slides = config.sliding_layers(layers)?;
        dense.slide(&slides.unwrap_or_else(|| rotated.iter().map(|rotated| !rotated).collect()), window);
    }
    Ok(dense.blueprint(names))
}

/// Returns for each layer whether it has `RoPE`: by a 1 in `no_rope_layers`, or all but every
/// `no_rope_layer_interval`-th layer.
fn rotated_layers(config: Config<'_>, layers: u64) -> Result<Vec<bool>, Error> {
    if let Some(list) = config.list("no_rope_layers")? {
        let flags = list.iter().map(|item| match item.as_u64() {
            Some(flag @ 0..=1) => Ok(flag == 1),
            _ => Err(fail(format!("`no_rope_layers` has {item}, expected 0 or 1"))),
        });
        let flags = flags.collect::<Result<Vec<bool>, _>>()?;
        if flags.len() as u64 != layers {
            return Err(fail(format!("`no_rope_layers` has {} items for {layers} layers", flags.len())));
        }
        return Ok(flags);
    }
    Ok(all_but_every(config.step("no_rope_layer_interval", INTERVAL)?, layers))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense { layout: HeadLayout::Interleaved, ..Dense::from_gguf(keys)? };
    for (index, layer) in (1u64..).zip(&mut dense.layers) {
        if index.is_multiple_of(INTERVAL) {
            layer.rope = None;
        }
    }
    Ok(dense.blueprint(names))
}

fn keys(blueprint: &Blueprint) -> Result<Vec<Key>, String> {
    llama::only_activation(blueprint, Activation::Silu, "SiLU")?;
    llama::only_usual_frequencies(blueprint)?;
    if blueprint.attentions().any(|attention| attention.window.is_some()) {
        return Err("the model has sliding layers, which GGUF files of this architecture cannot express".to_owned());
    }
    let rotated: Vec<bool> = blueprint.attentions().map(|attention| attention.rope.is_some()).collect();
    if rotated != all_but_every(INTERVAL, rotated.len() as u64) {
        return Err("other layers than every fourth have no RoPE, which GGUF cannot express".to_owned());
    }
    Ok(Vec::new())
}

fn fields(blueprint: &Blueprint, has: &dyn Fn(&str) -> bool) -> Vec<(&'static str, Json)> {
    let rotated: Vec<u8> = blueprint.attentions().map(|attention| u8::from(attention.rope.is_some())).collect();
    let mut fields = qwen2::windows(blueprint, has);
    fields.extend(llama::biases(blueprint, has));
    fields.push(("no_rope_layers", json!(rotated)));
    fields
}
