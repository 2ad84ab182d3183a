//! Mistral 7B and its successors: a Llama in which all layers slide if the config has a window.
//! Their GGUF files have Llama's form, which cannot express the window.

use serde_json::{Value as Json, json};

use super::llama;
use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense};
use crate::family::{Family, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    model_types: &["mistral", "ministral"],
    read_config,
    gguf: &llama::GGUF,
    hugging_face: HuggingFaceForm {
        class: "MistralForCausalLM",
        model_type: "mistral",
        is_written: true,
        activation_key: "hidden_act",
        norm_offset: 0.0,
        layout: HeadLayout::Half,
        fields,
    },
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: None, context: 131_072, theta: 10_000.0 };
/// Window that the class uses if the config omits it; `null` means none.
const WINDOW: u64 = 4096;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    let slides = config.sliding_layers(dense.layers.len() as u64)?;
    dense.slide_all(config, Some(WINDOW))?;
    // Ministral has windows in some layers only.
    for (layer, slides) in dense.layers.iter_mut().zip(slides.into_iter().flatten()) {
        layer.window = layer.window.filter(|_| slides);
    }
    Ok(dense.blueprint(names))
}

fn fields(blueprint: &Blueprint, _: &dyn Fn(&str) -> bool) -> Vec<(&'static str, Json)> {
    let window = blueprint.attentions().find_map(|attention| attention.window);
    vec![("sliding_window", json!(window))]
}
