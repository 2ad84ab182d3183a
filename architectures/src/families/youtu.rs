//! Youtu-LLM: latent attention as in `DeepSeek` V3, without experts.

use super::deepseek_v2::latent_attention;
use super::deepseek_v3::layout;
use crate::blueprint::Blueprint;
use crate::config_json::Config;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "youtu",
    model_types: &["youtu", "youtu_llm"],
    read_config,
    gguf: &GgufForm::not_yet("deepseek2"),
    hugging_face: HuggingFaceForm::of("YoutuForCausalLM", "youtu").interleaved(),
};

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[("max_position_embeddings", 131_072.0), ("q_lora_rank", 1536.0)];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    latent_attention(config, names, layout(config)?)
}
