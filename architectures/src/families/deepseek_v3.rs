//! `DeepSeek` V3 and R1, Kimi K2: like V2, with sigmoid scores and a bias for the selection of
//! experts.

use super::deepseek_v2::{add_experts, latent_attention, scores};
use crate::blueprint::{Blueprint, Groups, HeadLayout, RouterScores, Tensor};
use crate::config_json::Config;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "deepseek_v3",
    model_types: &["deepseek_v3", "kimi_k2"],
    read_config,
    gguf: &GgufForm::not_yet("deepseek2"),
    hugging_face: HuggingFaceForm::of("DeepseekV3ForCausalLM", "deepseek_v3").interleaved(),
};

/// Number of best experts that define the score of a group.
const BEST: u64 = 2;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let interleaved = config.flag("rope_interleave")?.unwrap_or(true);
    let layout = if interleaved { HeadLayout::Interleaved } else { HeadLayout::Half };
    let mut blueprint = latent_attention(config, names, layout)?;
    let (count, keep) = (config.unsigned("n_group")?.unwrap_or(1), config.unsigned("topk_group")?.unwrap_or(1));
    let groups = (count > 1).then_some(Groups { count, keep, best: BEST });
    let normalize = config.flag("norm_topk_prob")?.unwrap_or(true);
    let scale = config.float("routed_scaling_factor")?.unwrap_or(2.5);
    let scores = scores(config, RouterScores::Sigmoid)?;
    add_experts(config, names, &mut blueprint, |router, module| {
        (router.groups, router.normalize, router.scale, router.scores) = (groups, normalize, scale, scores);
        let bias = format!("{module}.gate.e_score_correction_bias");
        router.bias = names.has(&bias).then(|| Tensor::named(bias));
    })?;
    Ok(blueprint)
}
