//! `DeepSeek` V3 and R1, Kimi K2: like V2, with sigmoid scores and a bias for the selection of
//! experts.

use super::deepseek_v2::{add_experts, latent_attention, scores};
use crate::blueprint::{Blueprint, HeadLayout, RouterScores};
use crate::config_json::Config;
use crate::experts::SigmoidRouter;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "deepseek_v3",
    model_types: &["deepseek_v3", "kimi_k2"],
    read_config,
    gguf: &GgufForm::not_yet("deepseek2"),
    hugging_face: HuggingFaceForm::of("DeepseekV3ForCausalLM", "deepseek_v3").interleaved(),
};

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[
    ("max_position_embeddings", 4096.0),
    ("n_group", 8.0),
    ("topk_group", 4.0),
    ("n_routed_experts", 256.0),
    ("n_shared_experts", 1.0),
    ("q_lora_rank", 1536.0),
];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let mut blueprint = latent_attention(config, names, layout(config)?)?;
    let (rule, scores) = (SigmoidRouter::from_config(config, true, 2.5)?, scores(config, RouterScores::Sigmoid)?);
    add_experts(config, names, &mut blueprint, 3, |router, module| {
        rule.set(router, names, format!("{module}.gate.e_score_correction_bias"));
        router.scores = scores;
    })?;
    Ok(blueprint)
}

/// Returns the order of rotated elements.
pub(super) fn layout(config: Config<'_>) -> Result<HeadLayout, Error> {
    let interleaved = config.flag("rope_interleave")?.unwrap_or(true);
    Ok(if interleaved { HeadLayout::Interleaved } else { HeadLayout::Half })
}
