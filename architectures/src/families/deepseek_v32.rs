//! `DeepSeek` V3.2: like V3, with an indexer in each layer that chooses the positions to which a
//! token attends.

use super::deepseek_v2::{self, NAMES, add_experts, add_indexers, latent_attention, with_indexers};
use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::Config;
use crate::experts::SigmoidRouter;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "deepseek_v32",
    model_types: &["deepseek_v32"],
    read_config,
    gguf: &GgufForm {
        read: Some(|keys, names| read_gguf(keys, names, HeadLayout::Half)),
        names: NAMES,
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("deepseek32")
    },
    hugging_face: HuggingFaceForm::of("DeepseekV32ForCausalLM", "deepseek_v32").interleaved(),
};

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[
    ("max_position_embeddings", 163_840.0),
    ("n_group", 8.0),
    ("topk_group", 4.0),
    ("n_routed_experts", 256.0),
    ("n_shared_experts", 1.0),
    ("q_lora_rank", 1536.0),
    ("index_n_heads", 64.0),
];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    decoder(config, names, HeadLayout::Half)
}

/// Reads a config of a model whose indexers have this order of rotated elements.
pub(super) fn decoder(config: Config<'_>, names: &TensorNames, layout: HeadLayout) -> Result<Blueprint, Error> {
    let mut blueprint = latent_attention(config, names, HeadLayout::Interleaved)?;
    add_indexers(config, names, &mut blueprint, layout)?;
    let rule = SigmoidRouter::from_config(config, true, 2.5)?;
    add_experts(config, names, &mut blueprint, 3, |router, module| {
        rule.set(router, names, format!("{module}.gate.e_score_correction_bias"));
    })?;
    Ok(blueprint)
}

/// Reads the metadata of a file whose indexers have this order of rotated elements.
pub(super) fn read_gguf(keys: Keys<'_>, names: &TensorNames, layout: HeadLayout) -> Result<Blueprint, Error> {
    let mut blueprint = deepseek_v2::read_gguf(keys, names)?;
    let sizes = ["head_count", "key_length", "top_k"];
    let [heads, head_dim, count] = sizes.map(|key| keys.required(&format!("attention.indexer.{key}")));
    let layers = blueprint.layers.len();
    let types = keys.layers_with("attention.indexer.types", layers)?;
    // Without the list, llama.cpp takes GLM-5 files with such a context for GLM-5.2.
    let is_later = keys.architecture == "glm-dsa" && blueprint.context >= 1 << 20;
    if types.map_or(is_later, |types| types.contains(&false)) {
        return Err(gguf_keys::fail(
            "`attention.indexer.types`: layers that use the choice of an earlier layer cannot be run yet",
        ));
    }
    with_indexers(&mut blueprint, names, layout, [heads?, head_dim?, count?]);
    Ok(blueprint)
}
