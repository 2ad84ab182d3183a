//! GLM-5: like `DeepSeek` V3.2, with other numbers and another order of the indexer's elements.

use super::deepseek_v2::NAMES;
use super::deepseek_v32::{decoder, read_gguf};
use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::{Config, fail};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "glm_moe_dsa",
    model_types: &["glm_moe_dsa"],
    read_config,
    gguf: &GgufForm {
        read: Some(|keys, names| read_gguf(keys, names, HeadLayout::Interleaved)),
        names: NAMES,
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("glm-dsa")
    },
    hugging_face: HuggingFaceForm::of("GlmMoeDsaForCausalLM", "glm_moe_dsa").interleaved(),
};

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[
    ("max_position_embeddings", 202_752.0),
    ("rms_norm_eps", 1e-5),
    ("q_lora_rank", 2048.0),
    ("qk_nope_head_dim", 192.0),
    ("v_head_dim", 256.0),
    ("n_routed_experts", 256.0),
    ("n_shared_experts", 1.0),
    ("index_n_heads", 32.0),
];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    const SHARED: &str = "layers that use the choice of an earlier layer cannot be run yet";
    let types = config.list("indexer_types")?;
    if types.is_some_and(|types| types.iter().any(|own| own.as_str() != Some("full"))) {
        return Err(fail(format!("`indexer_types`: {SHARED}")));
    }
    let shares = config.unsigned("index_topk_freq")?.is_some_and(|step| step > 1);
    let pattern = config.text("index_topk_pattern").is_some_and(|pattern| pattern.contains('S'));
    if types.is_none() && (shares || pattern) {
        return Err(fail(format!("`index_topk_freq` or `index_topk_pattern`: {SHARED}")));
    }
    decoder(config.with_defaults(OF_CLASS), names, HeadLayout::Interleaved)
}
