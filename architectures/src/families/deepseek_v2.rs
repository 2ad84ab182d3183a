//! `DeepSeek` V2: latent attention, experts in groups, dense first layers.
//!
//! Source of the numbers: `modeling_deepseek_v2.py` of Hugging Face transformers and of the model's
//! authors.

use crate::blueprint::{
    Activation, Blueprint, Groups, HeadLayout, Indexer, Latent, LatentQuery, LowRankQuery, Matrices, Mixer, Norm,
    QueryGrowth, RouterScores, Rows, Tensor,
};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, layer_norm, projection};
use crate::experts::{self, ExpertLayers, MODULES};
use crate::family::{Alias, Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys};
use crate::name_tables::Table;
use crate::rope::yarn_magnitude;
use crate::{Error, Rope, RopeScaling, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "deepseek_v2",
    model_types: &["deepseek_v2"],
    read_config,
    gguf: &GgufForm {
        // The name by which Ollama publishes GLM-4.7-Flash.
        also: &[Alias::of("glm4moelite")],
        read: Some(read_gguf),
        names: NAMES,
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("deepseek2")
    },
    hugging_face: HuggingFaceForm::of("DeepseekV2ForCausalLM", "deepseek_v2").interleaved(),
};

/// Names of the tensors of layers in GGUF files.
pub(super) const NAMES: Table = &[
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
    ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("indexer.attn_k", "self_attn.indexer.wk"),
    ("indexer.k_norm", "self_attn.indexer.k_norm"),
    ("indexer.proj", "self_attn.indexer.weights_proj"),
];

/// Epsilon of the norms of low-rank rows in transformers, which does not use the config's epsilon
/// for them. llama.cpp uses the file's epsilon.
const LATENT_EPSILON: f64 = 1e-6;

/// Parameters of latent attention. Sizes are in elements.
struct LatentSizes {
    rope_dim: u64,
    nope_dim: u64,
    value_dim: u64,
    rank: u64,
    /// Rank of queries, if they are low-rank.
    query_rank: Option<u64>,
    layout: HeadLayout,
    scale: f64,
    query_growth: Option<QueryGrowth>,
    rope: Rope,
    /// Epsilon of the norms of low-rank rows.
    epsilon: f64,
}

/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[("n_routed_experts", 64.0), ("n_shared_experts", 2.0), ("q_lora_rank", 1536.0)];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
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
    // Weights are either normalized or scaled, not both.
    let scale = config.float("routed_scaling_factor")?.filter(|_| !normalize).unwrap_or(1.0);
    let scores = scores(config, RouterScores::Softmax)?;
    add_experts(config, names, &mut blueprint, 0, |router, _| {
        (router.groups, router.normalize, router.scale, router.scores) = (groups, normalize, scale, scores);
    })?;
    Ok(blueprint)
}

/// Returns the function that maps a router's logits to scores.
pub(super) fn scores(config: Config<'_>, default: RouterScores) -> Result<RouterScores, Error> {
    match config.text("scoring_func") {
        None => Ok(default),
        Some("softmax") => Ok(RouterScores::Softmax),
        Some("sigmoid") => Ok(RouterScores::Sigmoid),
        Some(other) => Err(fail(format!("`scoring_func` is `{other}`, expected softmax or sigmoid"))),
    }
}

/// Returns a model with latent attention and dense layers only.
pub(super) fn latent_attention(
    config: Config<'_>,
    names: &TensorNames,
    layout: HeadLayout,
) -> Result<Blueprint, Error> {
    let value_dim = config.unsigned("v_head_dim")?.unwrap_or(128);
    latent_attention_of(config, names, layout, value_dim)
}

/// Returns the same model with values of `value_dim` elements for each head.
pub(super) fn latent_attention_of(
    config: Config<'_>,
    names: &TensorNames,
    layout: HeadLayout,
    value_dim: u64,
) -> Result<Blueprint, Error> {
    let rope_dim = config.unsigned("qk_rope_head_dim")?.unwrap_or(64);
    let nope_dim = config.unsigned("qk_nope_head_dim")?.unwrap_or(128);
    let defaults = Defaults { head_dim: Some(rope_dim), ..LLAMA };
    let growth = config.attention_growth()?;
    let sizes = LatentSizes {
        rope_dim,
        nope_dim,
        value_dim,
        rank: config.unsigned("kv_lora_rank")?.unwrap_or(512),
        query_rank: config.unsigned("q_lora_rank")?,
        layout,
        scale: (nope_dim.saturating_add(rope_dim) as f64).powf(-0.5) * growth * growth,
        query_growth: None,
        rope: Rope { dimension: None, ..config.rope("full_attention", 10_000.0)? },
        epsilon: LATENT_EPSILON,
    };
    Ok(with_latent_attention(Dense::from_config(config, defaults)?, names, &sizes))
}

/// Reads GGUF metadata. If a file has sizes with the suffix `_mla`, those are per head and the
/// other sizes are of all heads. Otherwise the sizes without the suffix are per head.
pub(super) fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense::from_gguf(keys)?;
    let value_dim = keys.unsigned("attention.value_length_mla")?.unwrap_or(dense.value_dim);
    let mut blueprint = latent_of_gguf(keys, names, dense, HeadLayout::Interleaved, value_dim)?;
    if keys.unsigned("expert_count")?.is_some_and(|count| count > 0) {
        // Files of GLM-4.7-Flash do not state the function. Only models with sigmoid scores have
        // biases.
        let bias = |layer: usize| format!("model.layers.{layer}.mlp.gate.e_score_correction_bias");
        let has_bias = (0..blueprint.layers.len()).any(|layer| names.has(&bias(layer)));
        let scores = if has_bias { RouterScores::Sigmoid } else { RouterScores::Softmax };
        experts::from_gguf(keys, names, &mut blueprint, false, scores)?;
    } else {
        // The width of experts that are not there.
        keys.unsigned("expert_feed_forward_length")?;
    }
    Ok(blueprint)
}

/// Returns the model of a GGUF file with latent attention and dense layers only.
pub(super) fn latent_of_gguf(
    keys: Keys<'_>,
    names: &TensorNames,
    dense: Dense,
    layout: HeadLayout,
    value_dim: u64,
) -> Result<Blueprint, Error> {
    let rope_dim = keys.required("rope.dimension_count")?;
    let head_dim = keys.unsigned("attention.key_length_mla")?.unwrap_or(dense.head_dim);
    let nope_dim = head_dim.checked_sub(rope_dim).filter(|size| *size > 0).ok_or_else(|| {
        gguf_keys::fail(format!("heads have {head_dim} elements, of which {rope_dim} are rotated: none is left"))
    })?;
    let (rope, growth) = growing(keys)?;
    let sizes = LatentSizes {
        rope_dim,
        nope_dim,
        value_dim,
        rank: keys.required("attention.kv_lora_rank")?,
        query_rank: keys.unsigned("attention.q_lora_rank")?.filter(|rank| *rank > 0),
        layout,
        epsilon: dense.norm_epsilon,
        scale: (head_dim as f64).powf(-0.5) * growth * growth,
        query_growth: None,
        rope,
    };
    Ok(with_latent_attention(dense, names, &sizes))
}

/// Returns `RoPE`, and the growth of attention with `YaRN`. Files store a tenth of the growth's
/// weight. If a file has it, only the scores grow; the magnitude of rotated elements does not.
fn growing(keys: Keys<'_>) -> Result<(Rope, f64), Error> {
    let rope = keys.rope()?;
    let RopeScaling::Yarn { factor, .. } = rope.scaling else { return Ok((rope, 1.0)) };
    let Some(tenth) = keys.yarn_log_multiplier()? else {
        let growth = rope.magnitude;
        return Ok((rope, growth));
    };
    let magnitude = keys.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
    Ok((Rope { magnitude, ..rope }, magnitude * yarn_magnitude(factor, tenth * 10.0)))
}

/// Adds an indexer to each layer, whose rotated elements have the given order.
pub(super) fn add_indexers(
    config: Config<'_>,
    names: &TensorNames,
    blueprint: &mut Blueprint,
    layout: HeadLayout,
) -> Result<(), Error> {
    let heads = config.required("index_n_heads")?;
    let count = config.unsigned("index_topk")?.unwrap_or(2048);
    let head_dim = config.unsigned("index_head_dim")?.unwrap_or(128);
    with_indexers(blueprint, names, layout, [heads, head_dim, count]);
    Ok(())
}

/// Adds an indexer with these numbers of heads, of their elements, and of chosen positions to each
/// layer.
pub(super) fn with_indexers(
    blueprint: &mut Blueprint,
    names: &TensorNames,
    layout: HeadLayout,
    [heads, head_dim, count]: [u64; 3],
) {
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let Mixer::Latent(latent) = &mut layer.mixer else { continue };
        let module = format!("model.layers.{index}.self_attn.indexer");
        let own = |name: &str| projection(names, &format!("{module}.{name}"));
        latent.indexer = Some(Box::new(Indexer {
            heads,
            head_dim,
            layout,
            count,
            query: own("wq_b"),
            key: own("wk"),
            key_norm: layer_norm(names, &format!("{module}.k_norm"), LATENT_EPSILON),
            weights: own("weights_proj"),
        }));
    }
}

/// Returns a blueprint whose mixers are latent attention.
fn with_latent_attention(dense: Dense, names: &TensorNames, sizes: &LatentSizes) -> Blueprint {
    let heads = dense.heads;
    let norm = |module: &str| Norm { epsilon: sizes.epsilon, ..dense.norm(names, module) };
    let mixer = |index: usize| {
        let own = |module: &str| format!("model.layers.{index}.self_attn.{module}");
        let query = match sizes.query_rank {
            None => LatentQuery::Plain(Box::new(projection(names, &own("q_proj")))),
            Some(rank) => LatentQuery::LowRank(Box::new(LowRankQuery {
                rank,
                down: projection(names, &own("q_a_proj")),
                norm: norm(&own("q_a_layernorm")),
                up: projection(names, &own("q_b_proj")),
            })),
        };
        let [keys, values] = heads_of(names, &own, heads, sizes);
        Mixer::Latent(Box::new(Latent {
            heads,
            nope_dim: sizes.nope_dim,
            rope_dim: sizes.rope_dim,
            value_dim: sizes.value_dim,
            rank: sizes.rank,
            layout: sizes.layout,
            scale: sizes.scale,
            query_growth: sizes.query_growth,
            rope: sizes.rope.clone(),
            query,
            down: projection(names, &own("kv_a_proj_with_mqa")),
            norm: norm(&own("kv_a_layernorm")),
            keys,
            values,
            output: projection(names, &own("o_proj")),
            indexer: None,
        }))
    };
    let mixers: Vec<Mixer> = (0..dense.layers.len()).map(mixer).collect();
    let mut blueprint = dense.blueprint(names);
    for (layer, mixer) in blueprint.layers.iter_mut().zip(mixers) {
        layer.mixer = mixer;
    }
    blueprint
}

/// Returns the projections from latents to the keys and values of each head. GGUF files and MLX
/// have two stacks, of which the stack of keys is transposed. Folders and older files have one
/// matrix; each head has the rows of keys first, then the rows of values.
fn heads_of(names: &TensorNames, own: &dyn Fn(&str) -> String, heads: u64, sizes: &LatentSizes) -> [Matrices; 2] {
    for [keys, values] in [["k_b_proj", "v_b_proj"], ["embed_q", "unembed_out"]] {
        if names.has(&own(&format!("{keys}.weight"))) {
            let mut keys = projection(names, &own(keys));
            keys.weight.view.transposed = true;
            return [Matrices::Items(keys), Matrices::Items(projection(names, &own(values)))];
        }
    }
    // The check of the blueprint refuses sizes that overflow.
    let stride = sizes.nope_dim.saturating_add(sizes.value_dim);
    let part = |first: u64, block: u64| {
        let rows = Rows { first, count: heads.saturating_mul(block), block, stride };
        Matrices::Blocks(Tensor::blocks(own("kv_b_proj.weight"), rows))
    };
    [part(0, sizes.nope_dim), part(sizes.nope_dim, sizes.value_dim)]
}

/// Replaces the networks of all layers after the dense first ones by experts. `dense` is the number
/// of dense layers if the config omits it.
pub(super) fn add_experts(
    config: Config<'_>,
    names: &TensorNames,
    blueprint: &mut Blueprint,
    dense: u64,
    route: impl Fn(&mut crate::Router, &str),
) -> Result<(), Error> {
    let Some(count) = config.unsigned("n_routed_experts")? else { return Ok(()) };
    let sizes = experts::ExpertSizes {
        count,
        width: config.required("moe_intermediate_size")?,
        top_k: config.required("num_experts_per_tok")?,
        activation: config.activation("hidden_act", Activation::Silu)?,
    };
    let sparse = experts::regular_layers(config, blueprint.layers.len(), dense)?;
    let all = config.unsigned("n_shared_experts")?.filter(|count| *count > 0);
    let shared = all.map(|all| ("shared_experts", sizes.width.saturating_mul(all)));
    ExpertLayers { sizes, sparse, module: "mlp", modules: MODULES, shared }.add(names, blueprint, route);
    Ok(())
}
