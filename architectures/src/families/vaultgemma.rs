//! `VaultGemma`: Gemma 2 without the norms after the parts of a layer.

use super::gemma2;
use crate::blueprint::Blueprint;
use crate::config_json::Config;
use crate::dense::NormNames;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "vaultgemma",
    model_types: &["vaultgemma"],
    read_config,
    gguf: &GgufForm::not_yet("gemma2"),
    hugging_face: HuggingFaceForm::of("VaultGemmaForCausalLM", "vaultgemma"),
};

const NORMS: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: None,
    before_ffn: Some("pre_feedforward_layernorm"),
    after_ffn: None,
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    gemma2::with_norms(config, names, NORMS)
}
