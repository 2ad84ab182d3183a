//! `DeepSeek` `MoE` of 2024, and the text part of DeepSeek-OCR: attention as in Llama, experts as
//! in `DeepSeek` V2.

use super::deepseek_v2::{add_experts, scores};
use crate::blueprint::{Blueprint, HeadLayout, RouterScores};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::experts;
use crate::family::{Alias, Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "deepseek",
    model_types: &["deepseek"],
    read_config,
    gguf: &GgufForm {
        also: &[Alias::of(OF_OCR)],
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("deepseek")
    },
    hugging_face: HuggingFaceForm::of("DeepseekForCausalLM", "deepseek"),
};

/// Ollama's name for DeepSeek-OCR. Its converter keeps the order of rows.
const OF_OCR: &str = "deepseekocr";
const DEFAULTS: Defaults = LLAMA;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = Dense::from_config(config, DEFAULTS)?.blueprint(names);
    let normalize = config.flag("norm_topk_prob")?.unwrap_or(false);
    let scores = scores(config, RouterScores::Softmax)?;
    add_experts(config, names, &mut blueprint, 0, |router, _| {
        (router.normalize, router.scores) = (normalize, scores);
    })?;
    Ok(blueprint)
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let layout = if keys.architecture == OF_OCR { HeadLayout::Half } else { HeadLayout::Interleaved };
    let mut blueprint = Dense { layout, ..Dense::from_gguf(keys)? }.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, false, RouterScores::Softmax)?;
    Ok(blueprint)
}
