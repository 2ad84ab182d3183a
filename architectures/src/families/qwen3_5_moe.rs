//! Qwen 3.5, 3.6 and 3.8 with experts.

use super::qwen3_5;
use crate::blueprint::{Blueprint, RouterScores};
use crate::config_json::Config;
use crate::dense::Defaults;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, experts};

pub(super) const FAMILY: Family = Family {
    name: "qwen3_5_moe",
    model_types: &["qwen3_5_moe_text"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: qwen3_5::NAMES, ..GgufForm::not_yet("qwen35moe") },
    hugging_face: HuggingFaceForm::of("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(2), head_dim: Some(256), context: 32_768, theta: 10_000.0 };
const EXPERTS: experts::Defaults =
    experts::Defaults { count: 256, width: 512, top_k: 8, normalize: true, shared_width: Some(512) };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = qwen3_5::with_mixers(config, names, DEFAULTS)?;
    experts::from_config(config, names, &mut blueprint, &EXPERTS)?;
    Ok(blueprint)
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = qwen3_5::with_mixers_of_gguf(keys, names)?;
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Softmax)?;
    Ok(blueprint)
}
