//! GLM-4.7-Flash: latent attention and experts as in `DeepSeek` V3, with a dense first layer.

use super::deepseek_v2::{add_experts, latent_attention};
use super::deepseek_v3::layout;
use crate::blueprint::Blueprint;
use crate::config_json::Config;
use crate::experts::SigmoidRouter;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "glm4_moe_lite",
    model_types: &["glm4_moe_lite"],
    read_config,
    gguf: &GgufForm::not_yet("deepseek2"),
    hugging_face: HuggingFaceForm::of("Glm4MoeLiteForCausalLM", "glm4_moe_lite").interleaved(),
};

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[
    ("max_position_embeddings", 202_752.0),
    ("rms_norm_eps", 1e-5),
    ("q_lora_rank", 768.0),
    ("qk_nope_head_dim", 192.0),
    ("v_head_dim", 256.0),
    ("n_routed_experts", 64.0),
    ("n_shared_experts", 1.0),
];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let mut blueprint = latent_attention(config, names, layout(config)?)?;
    let rule = SigmoidRouter::from_config(config, true, 1.8)?;
    add_experts(config, names, &mut blueprint, 1, |router, module| {
        rule.set(router, names, format!("{module}.gate.e_score_correction_bias"));
    })?;
    Ok(blueprint)
}
