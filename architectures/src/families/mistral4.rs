//! Mistral Small 4: latent attention whose queries grow with the position, experts with softmax
//! scores.

use super::deepseek_v2::{add_experts, latent_attention};
use super::deepseek_v3::layout;
use super::ministral3::query_growth;
use crate::blueprint::{Blueprint, Mixer};
use crate::config_json::Config;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames, experts};

pub(super) const FAMILY: Family = Family {
    name: "mistral4",
    model_types: &["mistral4"],
    read_config,
    gguf: &GgufForm::not_yet("mistral4"),
    hugging_face: HuggingFaceForm::of("Mistral4ForCausalLM", "mistral4").interleaved(),
};

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[
    ("max_position_embeddings", 1_048_576.0),
    ("q_lora_rank", 1024.0),
    ("kv_lora_rank", 256.0),
    ("qk_nope_head_dim", 64.0),
    ("n_routed_experts", 128.0),
    ("n_shared_experts", 1.0),
];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    config.needs_rope()?;
    let mut blueprint = latent_attention(config, names, layout(config)?)?;
    let growth = query_growth(config)?;
    for layer in &mut blueprint.layers {
        if let Mixer::Latent(latent) = &mut layer.mixer {
            latent.query_growth = growth;
        }
    }
    let groups = experts::groups(config)?;
    let normalize = config.flag("norm_topk_prob")?.unwrap_or(true);
    let scale = config.float("routed_scaling_factor")?.unwrap_or(1.0);
    add_experts(config, names, &mut blueprint, 0, |router, _| {
        (router.groups, router.normalize, router.scale) = (groups, normalize, scale);
    })?;
    Ok(blueprint)
}
