//! Llama 4: attention in chunks with `RoPE`, and every fourth layer without both, in which queries
//! grow with the position; experts whose inputs are weighed.

use serde_json::Value;

use crate::blueprint::{Blueprint, Experts, Ffn, HeadLayout, Matrices, Projection, QueryGrowth, RouterScores};
use crate::blueprint::{Rows, Tensor, View};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, unweighted_norm};
use crate::experts::{self, ExpertSizes, routed, router, shared};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "llama4",
    model_types: &["llama4_text"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("ffn_norm", "post_attention_layernorm")],
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("llama4")
    },
    hugging_face: HuggingFaceForm::of("Llama4ForCausalLM", "llama4_text").interleaved(),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: Some(128), context: 131_072, theta: 500_000.0 };
/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[("rms_norm_eps", 1e-5), ("num_local_experts", 16.0)];
const CHUNK: u64 = 8192;
/// Every fourth layer has no positions.
const PATTERN: u64 = 4;
/// Growth of the queries of layers without positions.
const GROWTH: QueryGrowth = QueryGrowth { weight: 0.1, length: 8192.0, offset: 1.0 };
/// Number of experts of the model without norms of heads, Maverick.
const WITHOUT_HEAD_NORMS: u64 = 128;

/// Properties of attention that differ between layers.
struct LayerKinds {
    /// Whether a layer has `RoPE`.
    rotates: Vec<bool>,
    /// Whether a layer attends to its own chunk only.
    chunked: Vec<bool>,
    /// Positions of a chunk.
    chunk: u64,
    /// Growth of the queries of layers without `RoPE`.
    growth: Option<QueryGrowth>,
    has_head_norms: bool,
}

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let mut dense = Dense { layout: HeadLayout::Interleaved, ..Dense::from_config(config, DEFAULTS)? };
    let width = dense.intermediate;
    dense.intermediate = config.unsigned("intermediate_size_mlp")?.unwrap_or(16_384);
    dense.network_modules = ["feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"];
    let kinds = kinds(config, dense.layers.len() as u64)?;
    let sizes = ExpertSizes {
        count: experts::count(config, 16)?,
        width: if width == 0 { 8192 } else { width },
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(1),
        activation: dense.activation,
    };
    let sparse = sparse_layers(config, dense.layers.len() as u64)?;
    let mut blueprint = with_kinds(dense, names, &kinds);
    for (index, layer) in blueprint.layers.iter_mut().enumerate().filter(|(index, _)| sparse[*index]) {
        layer.ffn = Ffn::Experts(Box::new(weighed(names, &format!("model.layers.{index}.feed_forward"), sizes)));
    }
    Ok(blueprint)
}

fn kinds(config: Config<'_>, layers: u64) -> Result<LayerKinds, Error> {
    let step = config.step("no_rope_layer_interval", PATTERN)?;
    let flag = |value: &Value| match value.as_u64() {
        Some(flag @ 0..=1) => Ok(flag == 1),
        _ => Err(fail(format!("`no_rope_layers` has {value}, expected 0 or 1"))),
    };
    let listed = config.list("no_rope_layers")?.is_some_and(|list| !list.is_empty());
    let rotates = if listed { config.per_layer("no_rope_layers", layers, flag)? } else { None };
    let rotates = rotates.unwrap_or_else(|| (1..=layers).map(|layer| !layer.is_multiple_of(step)).collect());
    let has_chunks = !config.is_null("attention_chunk_size");
    let chunked = config.layers_of_type("chunked_attention", layers)?;
    let chunked = chunked.unwrap_or_else(|| rotates.iter().map(|rotates| *rotates && has_chunks).collect());
    let growth = QueryGrowth {
        weight: config.float("attn_scale")?.unwrap_or(GROWTH.weight),
        length: config.float("floor_scale")?.unwrap_or(GROWTH.length),
        ..GROWTH
    };
    Ok(LayerKinds {
        rotates,
        chunked,
        chunk: config.unsigned("attention_chunk_size")?.unwrap_or(CHUNK),
        growth: is_on(config, "attn_temperature_tuning")?.then_some(growth),
        has_head_norms: config.flag("use_qk_norm")?.unwrap_or(true),
    })
}

/// Reads a flag that some configs state as a number; true if it is missing.
fn is_on(config: Config<'_>, key: &str) -> Result<bool, Error> {
    match config.value(key).and_then(Value::as_u64) {
        Some(number) => Ok(number > 0),
        None => Ok(config.flag(key)?.unwrap_or(true)),
    }
}

/// Returns for each layer whether it has experts: by a list of indexes, or by a step.
fn sparse_layers(config: Config<'_>, layers: u64) -> Result<Vec<bool>, Error> {
    let step = config.step("interleave_moe_layer_step", 1)?;
    let Some(listed) = config.list("moe_layers")? else {
        return Ok((1..=layers).map(|layer| layer.is_multiple_of(step)).collect());
    };
    if let Some(other) = listed.iter().find(|index| index.as_u64().is_none_or(|index| index >= layers)) {
        return Err(fail(format!("`moe_layers` has {other}, expected indexes of {layers} layers")));
    }
    Ok((0..layers).map(|layer| listed.iter().any(|index| index.as_u64() == Some(layer))).collect())
}

/// Returns the blueprint with dense networks, and with attention as its layers have it.
fn with_kinds(dense: Dense, names: &TensorNames, kinds: &LayerKinds) -> Blueprint {
    let norm = || Some(unweighted_norm(dense.norm_epsilon));
    let (query_norm, key_norm) = (norm(), norm());
    let mut blueprint = dense.blueprint(names);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        attention.chunk = kinds.chunked[index].then_some(kinds.chunk);
        if !kinds.rotates[index] {
            (attention.rope, attention.query_growth) = (None, kinds.growth);
        } else if kinds.has_head_norms {
            attention.norms_follow_rope = true;
            (attention.query_norm, attention.key_norm) = (query_norm.clone(), key_norm.clone());
        }
    }
    blueprint
}

/// Returns the experts of a folder. Their stacks are transposed, with gate and up in one tensor.
fn weighed(names: &TensorNames, module: &str, sizes: ExpertSizes) -> Experts {
    let stack = |name: &str, rows: Option<Rows>| {
        let module = format!("{module}.experts.{name}");
        let weight = Tensor { name: module.clone(), view: View { rows, transposed: true, item: None } };
        Matrices::Items(Projection { module, weight, bias: None, clamps: None })
    };
    let part = |first: u64| stack("gate_up_proj", Some(Rows::run(first, sizes.width)));
    let matrices =
        experts::switched(names, module).unwrap_or_else(|| [part(0), part(sizes.width), stack("down_proj", None)]);
    let mut own = routed(sizes, router(names, &format!("{module}.router"), sizes.top_k), matrices);
    own.router.scores = RouterScores::Sigmoid;
    own.weighs_inputs = true;
    own.shared = Some(shared(names, &format!("{module}.shared_expert"), None, sizes.width, sizes.activation));
    own
}

/// Reads GGUF metadata with llama.cpp's constants: chunks of 8192 positions, every fourth layer
/// without positions, and no norms of heads in the model with 128 experts.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { layout: HeadLayout::Interleaved, ..Dense::from_gguf(keys)? };
    let layers = dense.layers.len() as u64;
    let chunk = keys.unsigned("attention.chunk_size")?.unwrap_or(CHUNK);
    let rotates: Vec<bool> = (1..=layers).map(|layer| !layer.is_multiple_of(PATTERN)).collect();
    let kinds = LayerKinds {
        chunked: rotates.clone(),
        rotates,
        chunk,
        growth: Some(GROWTH),
        has_head_norms: keys.unsigned("expert_count")? != Some(WITHOUT_HEAD_NORMS),
    };
    // The layers with experts have routers.
    keys.unsigned("interleave_moe_layer_step")?;
    let mut blueprint = with_kinds(dense, names, &kinds);
    experts::from_gguf(keys, names, &mut blueprint, false, RouterScores::Sigmoid)?;
    for layer in &mut blueprint.layers {
        if let Ffn::Experts(own) = &mut layer.ffn {
            own.weighs_inputs = true;
        }
    }
    Ok(blueprint)
}
