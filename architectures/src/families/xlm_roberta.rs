//! `RoBERTa` and XLM-RoBERTa: BERT whose positions start after the padding token's id.

use super::bert;
use crate::blueprint::Blueprint;
use crate::config_json::Config;
use crate::family::{Family, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "xlm-roberta",
    model_types: &["xlm-roberta", "roberta", "camembert"],
    read_config,
    gguf: &bert::GGUF,
    hugging_face: HuggingFaceForm::of("XLMRobertaModel", "xlm-roberta"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let padding = config.unsigned("pad_token_id")?.unwrap_or(1);
    bert::read(config, names, "roberta.", padding.saturating_add(1))
}
