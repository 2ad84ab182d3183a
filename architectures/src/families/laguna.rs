//! Laguna: attention with norms and gates of heads, experts with sigmoid scores after dense first
//! layers.

use crate::blueprint::{AttentionGate, Blueprint, GateFunction, RouterScores};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, projection};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES, SigmoidRouter};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, Rope, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "laguna",
    model_types: &["laguna"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("ffn_norm", "post_attention_layernorm"), ("attn_gate", "self_attn.g_proj")],
        ..GgufForm::not_yet("laguna")
    },
    hugging_face: HuggingFaceForm::of("LagunaForCausalLM", "laguna"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: Some(128), context: 131_072, theta: 500_000.0 };
const WINDOW: u64 = 512;
const PATTERN: usize = 4;
const HEADS: &str = "num_attention_heads_per_layer";
const SLIDING_THETA: f64 = 10_000.0;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    for key in ["moe_apply_router_weight_on_input", "moe_router_logit_softcapping"] {
        let is_off =
            config.value(key).is_none_or(|value| value.as_bool() == Some(false) || value.as_f64() == Some(0.0));
        if !is_off {
            return Err(fail(format!("`{key}` is set, which cannot be run yet")));
        }
    }
    let mut dense = Dense { head_norms: true, ..Dense::from_config(config, DEFAULTS)? };
    let layers = dense.layers.len();
    let slides = config.sliding_layers(layers as u64)?.unwrap_or_else(|| vec![false; layers]);
    dense.slide(&slides, config.unsigned("sliding_window")?.unwrap_or(WINDOW));
    let [full, sliding] = [("full_attention", 500_000.0), ("sliding_attention", SLIDING_THETA)]
        .map(|(kind, theta)| rope(config, kind, theta, dense.head_dim));
    dense.set_ropes(&full?, &sliding?);
    let sizes = ExpertSizes {
        count: experts::count(config, 256)?,
        width: config.unsigned("moe_intermediate_size")?.unwrap_or(512),
        top_k: config.unsigned("num_experts_per_tok")?.unwrap_or(8),
        activation: dense.activation,
    };
    let mut blueprint = dense.blueprint(names);
    add_gates(config, names, &mut blueprint)?;
    let shared = config.unsigned("shared_expert_intermediate_size")?.unwrap_or(512);
    let module =
        if names.has("model.layers.1.mlp.shared_experts.up_proj.weight") { "shared_experts" } else { "shared_expert" };
    let layers = ExpertLayers {
        sizes,
        sparse: sparse_layers(config, layers)?,
        module: "mlp",
        modules: MODULES,
        shared: Some((module, shared)),
    };
    let rule = SigmoidRouter::normalized(config.float("moe_routed_scaling_factor")?.unwrap_or(1.0));
    layers.add(names, &mut blueprint, |router, module| {
        rule.set(router, names, format!("{module}.experts.e_score_correction_bias"));
    });
    Ok(blueprint)
}

/// Returns for each layer whether it has experts: by a list of types, or else by a list of dense
/// layers, or else all but the first.
fn sparse_layers(config: Config<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let dense = config.list("mlp_only_layers")?;
    match (config.value("mlp_layer_types"), dense) {
        (None, Some(dense)) => {
            let is_dense = |layer: u64| dense.iter().any(|own| own.as_u64() == Some(layer));
            Ok((0..layers as u64).map(|layer| !is_dense(layer)).collect())
        }
        _ => experts::after_dense_layers(config, layers, 1),
    }
}

/// Returns the `RoPE` of layers of a type, which has its own rotated share.
fn rope(config: Config<'_>, kind: &str, theta: f64, head_dim: u64) -> Result<Rope, Error> {
    let Some(rope) = config.newer_rope(kind, theta)? else {
        // The class rotates half of each head of layers with full attention.
        let dimension = (kind == "full_attention").then_some(head_dim / 2);
        return Ok(Rope { dimension, ..Rope::plain(theta) });
    };
    Ok(Rope { dimension: config.rotated_of(kind, head_dim)?, ..rope })
}

/// Adds the gates of attention, and sets the number of heads of each layer.
fn add_gates(config: Config<'_>, names: &TensorNames, blueprint: &mut Blueprint) -> Result<(), Error> {
    let per_head = match config.value("gating") {
        None => true,
        Some(value) if value.as_bool() == Some(true) || value.as_str() == Some("per-head") => true,
        Some(value) if value.as_str() == Some("per-element") => false,
        Some(other) => return Err(fail(format!("`gating` is {other}, expected true, per-head or per-element"))),
    };
    let is_usual = |kind: &serde_json::Value| match kind.as_str() {
        Some("per_head" | "per-head") => Ok(true),
        Some("per_element" | "per-element") => Ok(false),
        _ => Err(fail(format!("`gating_types` has {kind}, expected per_head or per_element"))),
    };
    let listed = config.per_layer("gating_types", blueprint.layers.len() as u64, is_usual)?;
    if listed.is_some_and(|listed| listed.iter().any(|own| *own != per_head)) {
        return Err(fail("`gating_types` differs from `gating`, which cannot be run yet"));
    }
    let number = |heads: &serde_json::Value| {
        heads.as_u64().ok_or_else(|| fail(format!("`{HEADS}` has {heads}, expected whole numbers")))
    };
    let heads = config.per_layer(HEADS, blueprint.layers.len() as u64, number)?;
    set_heads(names, blueprint, heads.as_deref(), per_head);
    Ok(())
}

/// Sets the number of heads of each layer, if it is known, and the gates.
fn set_heads(names: &TensorNames, blueprint: &mut Blueprint, heads: Option<&[u64]>, per_head: bool) {
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        attention.heads = heads.map_or(attention.heads, |heads| heads[index]);
        let gate = projection(names, &format!("model.layers.{index}.self_attn.g_proj"));
        attention.gate = Some(AttentionGate { projection: gate, per_head, function: GateFunction::Softplus });
    }
}

/// Reads GGUF metadata with llama.cpp's constants: every fourth layer from the first on has full
/// attention, and each head has one gate.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense { head_norms: true, ..Dense::from_any_gguf(keys)? };
    let layers = dense.layers.len();
    let window = keys.unsigned("attention.sliding_window")?.unwrap_or(0);
    if window > 0 {
        let usual = || (0..layers).map(|layer| !layer.is_multiple_of(PATTERN)).collect();
        dense.slide(&keys.sliding_layers(layers as u64)?.unwrap_or_else(usual), window);
        let theta = keys.float("rope.freq_base_swa")?.unwrap_or(SLIDING_THETA);
        let rotated = keys.unsigned("rope.dimension_count_swa")?.filter(|rotated| *rotated != dense.head_dim);
        dense.set_sliding_rope(&Rope { dimension: rotated, ..Rope::plain(theta) });
    }
    let heads = keys.numbers_of_layers("attention.head_count", layers)?;
    let mut blueprint = dense.blueprint(names);
    set_heads(names, &mut blueprint, heads.as_deref(), true);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Sigmoid)?;
    Ok(blueprint)
}
