//! Mistral Small 4: latent attention whose queries grow with the position, experts with softmax
//! scores.

use super::deepseek_v2::{self, add_experts, latent_attention};
use super::deepseek_v3::layout;
use super::ministral3::{growth_of_gguf, query_growth};
use crate::blueprint::{Blueprint, HeadLayout, Mixer, QueryGrowth};
use crate::config_json::Config;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, experts};

pub(super) const FAMILY: Family = Family {
    name: "mistral4",
    model_types: &["mistral4"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: deepseek_v2::NAMES,
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("mistral4")
    },
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
    grow(&mut blueprint, query_growth(config)?);
    let groups = experts::groups(config)?;
    let normalize = config.flag("norm_topk_prob")?.unwrap_or(true);
    let scale = config.float("routed_scaling_factor")?.unwrap_or(1.0);
    add_experts(config, names, &mut blueprint, 0, |router, _| {
        (router.groups, router.normalize, router.scale) = (groups, normalize, scale);
    })?;
    Ok(blueprint)
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = deepseek_v2::read_gguf(keys, names)?;
    grow(&mut blueprint, growth_of_gguf(keys)?);
    Ok(blueprint)
}

/// Sets the growth of all queries with the position.
fn grow(blueprint: &mut Blueprint, growth: Option<QueryGrowth>) {
    for layer in &mut blueprint.layers {
        if let Mixer::Latent(latent) = &mut layer.mixer {
            latent.query_growth = growth;
        }
    }
}
