//! Llama 3.2 Vision: a Llama with additional layers that attend to pictures. Without pictures,
//! these layers do nothing.

use serde_json::Value;

use crate::blueprint::{Blueprint, Rows};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys};
use crate::{Error, HeadLayout, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "mllama",
    model_types: &["mllama_text_model"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("mllama")
    },
    hugging_face: HuggingFaceForm::of("MllamaForConditionalGeneration", "mllama_text_model"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: None, context: 131_072, theta: 500_000.0 };
/// Layers that attend to pictures, if a config does not list them.
const USUAL: [u64; 8] = [3, 8, 13, 18, 23, 28, 33, 38];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense =
        Dense { norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5), ..Dense::from_config(config, DEFAULTS)? };
    let layers = dense.layers.len() as u64;
    let index = |index: &Value| {
        let index = index.as_u64().filter(|index| *index < layers);
        index.ok_or_else(|| fail(format!("`cross_attention_layers` has an item that is no index of {layers} layers")))
    };
    let listed = config.list("cross_attention_layers")?;
    let of_pictures = match listed {
        Some(listed) => listed.iter().map(index).collect::<Result<Vec<_>, _>>()?,
        None => USUAL.to_vec(),
    };
    Ok(without_pictures(dense, names, &of_pictures))
}

/// Reads GGUF metadata. Ollama writes such files; llama.cpp does not know them.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense { layout: HeadLayout::Interleaved, ..Dense::from_gguf(keys)? };
    let name = keys.name("attention.cross_attention_layers");
    keys.unsigned_or_list("attention.cross_attention_layers")?;
    let of_pictures = match keys.gguf.array(&name) {
        Some(listed) => {
            let listed: Option<Vec<u64>> = listed.iter().map(|layer| layer.as_u64()).collect();
            listed.ok_or_else(|| gguf_keys::fail(format!("`{name}` is no list of indexes of layers")))?
        }
        None => USUAL.to_vec(),
    };
    let output = keys.gguf.tensors.iter().find(|tensor| tensor.name == "output.weight");
    dense.vocabulary = output.and_then(|output| output.dims.get(1).copied()).unwrap_or(dense.vocabulary);
    Ok(without_pictures(dense, names, &of_pictures))
}

/// Returns the blueprint without the layers that attend to pictures.
fn without_pictures(dense: Dense, names: &TensorNames, of_pictures: &[u64]) -> Blueprint {
    let mut blueprint = dense.blueprint(names);
    // The embedding has more rows, for tokens of pictures.
    blueprint.embedding.weight.view.rows = Some(Rows::run(0, blueprint.vocabulary));
    let mut layer = 0..;
    blueprint.layers.retain(|_| layer.next().is_none_or(|layer| !of_pictures.contains(&layer)));
    blueprint
}
