//! `DeepSeek` V2: latent attention, experts in groups, the first layers dense.
//!
//! Source of the numbers: `modeling_deepseek_v2.py` of Hugging Face transformers and of the model's authors.

use crate::blueprint::{
    Activation, Blueprint, Ffn, Groups, HeadLayout, Latent, LatentQuery, LowRankQuery, Matrices, Mixer, RouterScores,
    Rows, Tensor,
};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, projection};
use crate::experts::{MODULES, Sizes, experts, shared};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, Rope, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "deepseek_v2",
    model_types: &["deepseek_v2"],
    read_config,
    gguf: &GgufForm::not_yet("deepseek2"),
    hugging_face: HuggingFaceForm::of("DeepseekV2ForCausalLM", "deepseek_v2"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = latent_attention(config, names, HeadLayout::Interleaved)?;
    let groups = match config.text("topk_method").unwrap_or("greedy") {
        "greedy" => None,
        "group_limited_greedy" => Some(Groups {
            count: config.unsigned("n_group")?.unwrap_or(1),
            keep: config.unsigned("topk_group")?.unwrap_or(1),
            best: 1,
        }),
        other => return Err(fail(format!("`topk_method` is `{other}`, expected greedy or group_limited_greedy"))),
    };
    let normalize = config.flag("norm_topk_prob")?.unwrap_or(false);
    // Weights are normalized or scaled, not both.
    let scale = config.float("routed_scaling_factor")?.filter(|_| !normalize).unwrap_or(1.0);
    let scores = scores(config, RouterScores::Softmax)?;
    add_experts(config, names, &mut blueprint, |router, _| {
        (router.groups, router.normalize, router.scale, router.scores) = (groups, normalize, scale, scores);
    })?;
    Ok(blueprint)
}

/// What a router's logits become.
pub(super) fn scores(config: Config<'_>, default: RouterScores) -> Result<RouterScores, Error> {
    match config.text("scoring_func") {
        None => Ok(default),
        Some("softmax") => Ok(RouterScores::Softmax),
        Some("sigmoid") => Ok(RouterScores::Sigmoid),
        Some(other) => Err(fail(format!("`scoring_func` is `{other}`, expected softmax or sigmoid"))),
    }
}

/// A model with latent attention and dense layers only.
pub(super) fn latent_attention(
    config: Config<'_>,
    names: &TensorNames,
    layout: HeadLayout,
) -> Result<Blueprint, Error> {
    let rope_dim = config.unsigned("qk_rope_head_dim")?.unwrap_or(64);
    let nope_dim = config.unsigned("qk_nope_head_dim")?.unwrap_or(128);
    let value_dim = config.unsigned("v_head_dim")?.unwrap_or(128);
    let rank = config.unsigned("kv_lora_rank")?.unwrap_or(512);
    let defaults = Defaults { head_dim: Some(rope_dim), ..LLAMA };
    let dense = Dense::from_config(config, defaults)?;
    let (heads, growth) = (dense.heads, config.attention_growth()?);
    let rope = Rope { dimension: None, ..config.rope("full_attention", 10_000.0)? };
    let low_rank = config.unsigned("q_lora_rank")?;
    let norm = |module: &str| dense.norm(names, module);
    let mixer = |index: usize| {
        let own = |module: &str| format!("model.layers.{index}.self_attn.{module}");
        let query = match low_rank {
            None => LatentQuery::Plain(Box::new(projection(names, &own("q_proj")))),
            Some(rank) => LatentQuery::LowRank(Box::new(LowRankQuery {
                rank,
                down: projection(names, &own("q_a_proj")),
                norm: norm(&own("q_a_layernorm")),
                up: projection(names, &own("q_b_proj")),
            })),
        };
        // Of each head first the rows of keys, then those of values. Sizes that overflow are refused by the check.
        let stride = nope_dim.saturating_add(value_dim);
        let part = |first: u64, block: u64| {
            let rows = Rows { first, count: heads.saturating_mul(block), block, stride };
            Matrices::Blocks(Tensor::blocks(own("kv_b_proj.weight"), rows))
        };
        Mixer::Latent(Box::new(Latent {
            heads,
            nope_dim,
            rope_dim,
            value_dim,
            rank,
            layout,
            scale: (nope_dim.saturating_add(rope_dim) as f64).powf(-0.5) * growth * growth,
            rope: rope.clone(),
            query,
            down: projection(names, &own("kv_a_proj_with_mqa")),
            norm: norm(&own("kv_a_layernorm")),
            keys: part(0, nope_dim),
            values: part(nope_dim, value_dim),
            output: projection(names, &own("o_proj")),
        }))
    };
    let mixers: Vec<Mixer> = (0..dense.layers.len()).map(mixer).collect();
    let mut blueprint = dense.blueprint(names);
    for (layer, mixer) in blueprint.layers.iter_mut().zip(mixers) {
        layer.mixer = mixer;
    }
    Ok(blueprint)
}

/// Replaces the networks of the layers after the first ones by experts.
pub(super) fn add_experts(
    config: Config<'_>,
    names: &TensorNames,
    blueprint: &mut Blueprint,
    route: impl Fn(&mut crate::Router, &str),
) -> Result<(), Error> {
    let Some(count) = config.unsigned("n_routed_experts")? else { return Ok(()) };
    let sizes = Sizes {
        count,
        width: config.required("moe_intermediate_size")?,
        top_k: config.required("num_experts_per_tok")?,
        activation: config.activation("hidden_act", Activation::Silu)?,
    };
    let dense = config.unsigned("first_k_dense_replace")?.unwrap_or(0);
    let step = config.step("moe_layer_freq", 1)?;
    let all = config.unsigned("n_shared_experts")?.filter(|count| *count > 0);
    for (index, layer) in (0u64..).zip(&mut blueprint.layers) {
        if index < dense || !index.is_multiple_of(step) {
            continue;
        }
        let module = format!("model.layers.{index}.mlp");
        let mut own = experts(names, &module, MODULES, sizes);
        own.shared = all.map(|all| {
            let width = sizes.width.saturating_mul(all);
            shared(names, &format!("{module}.shared_experts"), None, width, sizes.activation)
        });
        route(&mut own.router, &module);
        layer.ffn = Ffn::Experts(Box::new(own));
    }
    Ok(())
}
