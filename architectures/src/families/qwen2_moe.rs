//! Qwen 1.5 and 2 with experts: a shared expert with a gate in addition to the selected ones.

use super::{llama, qwen2};
use crate::blueprint::{Blueprint, RouterScores};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, experts, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "qwen2_moe",
    model_types: &["qwen2_moe"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        attention_scale: Some(llama::by_head_size),
        ..GgufForm::not_yet("qwen2moe")
    },
    hugging_face: HuggingFaceForm::of("Qwen2MoeForCausalLM", "qwen2_moe"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(16), context: 32_768, ..LLAMA };
const EXPERTS: experts::Defaults =
    experts::Defaults { count: 60, width: 1408, top_k: 4, normalize: false, shared_width: Some(5632) };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    qwen2::slide(&mut dense, config)?;
    let mut blueprint = dense.blueprint(names);
    experts::from_config(config, names, &mut blueprint, &EXPERTS)?;
    Ok(blueprint)
}

/// Reads GGUF metadata with llama.cpp's constants: weights of the selected experts are not
/// normalized.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = Dense::from_gguf(keys)?.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, false, RouterScores::Softmax)?;
    Ok(blueprint)
}
