//! `DeepSeek` V4: attention to a window and to compressed entries, streams that parts of layers mix
//! with balanced shares, and in the first layers a table that gives experts to tokens.

mod attention;

use serde_json::Value;

use crate::blueprint::{Activation, Blueprint, Ffn, HeadLayout, Network, Router, RouterScores, SharedExpert, Tensor};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, NormNames, PRE_NORMS};
use crate::experts::{self, ExpertSizes, Modules};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys};
use crate::name_tables::Table;
use crate::{Error, TensorNames};
use attention::Sizes;

pub(super) const FAMILY: Family = Family {
    name: "deepseek_v4",
    model_types: &["deepseek_v4"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: NAMES,
        model_names: &[
            ("output_hc_fn.weight", "model.hc_head.hc_fn"),
            ("output_hc_base.weight", "model.hc_head.hc_base"),
            ("output_hc_scale.weight", "model.hc_head.hc_scale"),
        ],
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("deepseek4")
    },
    hugging_face: HuggingFaceForm::of("DeepseekV4ForCausalLM", "deepseek_v4").interleaved(),
};

/// Names of the tensors of layers in GGUF files.
const NAMES: Table = &[
    ("attn_norm", "attn_norm"),
    ("ffn_norm", "ffn_norm"),
    ("hc_attn_fn.weight", "hc_attn_fn"),
    ("hc_attn_base.weight", "hc_attn_base"),
    ("hc_attn_scale.weight", "hc_attn_scale"),
    ("hc_ffn_fn.weight", "hc_ffn_fn"),
    ("hc_ffn_base.weight", "hc_ffn_base"),
    ("hc_ffn_scale.weight", "hc_ffn_scale"),
    ("attn_sinks.weight", "attn.attn_sink"),
    ("attn_q_a", "attn.wq_a"),
    ("attn_q_a_norm", "attn.q_norm"),
    ("attn_q_b", "attn.wq_b"),
    ("attn_kv", "attn.wkv"),
    ("attn_kv_a_norm", "attn.norm"),
    ("attn_output_a", "attn.wo_a"),
    ("attn_output_b", "attn.wo_b"),
    ("attn_compressor_kv", "attn.compressor.wkv"),
    ("attn_compressor_gate", "attn.compressor.wgate"),
    ("attn_compressor_ape.weight", "attn.compressor.ape"),
    ("attn_compressor_norm", "attn.compressor.norm"),
    ("indexer.attn_q_b", "attn.indexer.wq_b"),
    ("indexer.proj", "attn.indexer.weights_proj"),
    ("indexer_compressor_kv", "attn.indexer.compressor.wkv"),
    ("indexer_compressor_gate", "attn.indexer.compressor.wgate"),
    ("indexer_compressor_ape.weight", "attn.indexer.compressor.ape"),
    ("indexer_compressor_norm", "attn.indexer.compressor.norm"),
    ("ffn_gate_tid2eid.weight", "mlp.gate.tid2eid"),
];

const DEFAULTS: Defaults = Defaults { kv_heads: Some(1), head_dim: Some(512), context: 1_048_576, theta: 10_000.0 };
/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[
    ("vocab_size", 129_280.0),
    ("hidden_size", 4096.0),
    ("moe_intermediate_size", 2048.0),
    ("num_hidden_layers", 43.0),
    ("num_attention_heads", 64.0),
    ("q_lora_rank", 1024.0),
    ("num_experts_per_tok", 6.0),
    ("n_routed_experts", 256.0),
    ("routed_scaling_factor", 1.5),
    ("compress_rope_theta", 160_000.0),
    ("hc_mult", 4.0),
    ("hc_sinkhorn_iters", 20.0),
    ("hc_eps", 1e-6),
    ("swiglu_limit", 10.0),
    ("sliding_window", 128.0),
    ("o_groups", 8.0),
    ("o_lora_rank", 1024.0),
    ("index_n_heads", 64.0),
    ("index_head_dim", 128.0),
    ("index_topk", 512.0),
];
/// Number of first layers with a table of the experts of tokens, if the config states none.
const HASH_LAYERS: usize = 3;
/// Names of the modules of an expert: gate, up, down.
const EXPERT_MODULES: Modules = ["w1", "w3", "w2"];
/// Names of norms.
const NORMS: NormNames = NormNames { before_mixer: Some("attn_norm"), before_ffn: Some("ffn_norm"), ..PRE_NORMS };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let limit = config.float("swiglu_limit")?.filter(|limit| *limit > 0.0);
    let activation = limit.map_or(Activation::Silu, |limit| Activation::BoundedSilu { limit });
    let mut dense = Dense::without_activation(config, DEFAULTS, config.required("num_hidden_layers")?)?;
    let own = config.activation("hidden_act", Activation::Silu)?;
    if own != Activation::Silu {
        return Err(fail(format!("`hidden_act` is {}, expected silu", own.name())));
    }
    if dense.kv_heads != 1 {
        return Err(fail(format!("`num_key_value_heads` is {}, expected 1", dense.kv_heads)));
    }
    let layers = dense.layers.len();
    let (sizes, hashed) = (Sizes::of_config(config, &dense)?, hash_layers(config, layers)?);
    // Published models have no prefix.
    let bare = names.has("embed.weight");
    (dense.norms, dense.output) = (NORMS, if names.has("lm_head.weight") { "lm_head" } else { "head" });
    if bare {
        dense.embedding = "embed.weight";
    }
    let head_dim = dense.head_dim;
    let mut blueprint = dense.blueprint(names);
    add_experts(config, &mut blueprint, activation, (names, if bare { "" } else { "model." }), &hashed)?;
    sizes.add(names, if bare { "" } else { "model." }, head_dim, &mut blueprint);
    Ok(blueprint)
}

/// Reads GGUF metadata with llama.cpp's constants. The converter writes the kind of a layer as the
/// number of positions of its entries.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense { norms: NORMS, ..Dense::from_gguf(keys)? };
    let layers = dense.layers.len();
    let of_experts = limits(keys, "swiglu_clamp_exp", layers)?;
    let of_experts = of_experts.ok_or_else(|| missing(keys, "swiglu_clamp_exp"))?;
    let of_shared = limits(keys, "swiglu_clamp_shexp", layers)?.unwrap_or_else(|| of_experts.clone());
    let sizes = Sizes::of_gguf(keys, layers)?;
    let streams = sizes.streams.saturating_mul(dense.hidden);
    if let Some(width) = keys.unsigned("embedding_length_out")?.filter(|width| *width != streams) {
        let name = keys.name("embedding_length_out");
        return Err(gguf_keys::fail(format!("`{name}` is {width}, expected the {streams} of all streams")));
    }
    let head_dim = dense.head_dim;
    let mut blueprint = dense.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::RootOfSoftplus)?;
    let hashed = keys.required("hash_layer_count")? as usize;
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let Ffn::Experts(own) = &mut layer.ffn else {
            return Err(gguf_keys::fail(format!("layer {index} has no experts, expected them in all layers")));
        };
        let bounded = |limits: &[f64]| {
            let limit = Some(limits[index]).filter(|limit| *limit > NO_LIMIT);
            limit.map_or(Activation::Silu, |limit| Activation::BoundedSilu { limit })
        };
        own.activation = bounded(&of_experts);
        if let Some(Network::Gated(network)) = own.shared.as_mut().map(|shared| &mut shared.ffn) {
            network.activation = bounded(&of_shared);
        }
        if index < hashed {
            given(&mut own.router, format!("model.layers.{index}.mlp.gate.tid2eid"));
        }
    }
    sizes.add(names, "model.", head_dim, &mut blueprint);
    Ok(blueprint)
}

/// Returns the limits of the activations of all layers: a list, or one number for all.
fn limits(keys: Keys<'_>, key: &str, layers: usize) -> Result<Option<Vec<f64>>, Error> {
    match keys.floats_of_layers(key, layers)? {
        Some(limits) => Ok(Some(limits)),
        None => Ok(keys.float(key)?.map(|limit| vec![limit; layers])),
    }
}

fn missing(keys: Keys<'_>, key: &str) -> Error {
    gguf_keys::fail(format!("`{}` is missing", keys.name(key)))
}

/// Limits up to this number mean that there is none.
const NO_LIMIT: f64 = 1e-6;

/// Lets a table give experts to tokens.
fn given(router: &mut Router, table: String) {
    (router.of_tokens, router.bias) = (Some(Tensor::named(table)), None);
}

/// Returns the first items of a list, one for each layer; published lists also have those of layers
/// for multi-token prediction.
fn first_items<'a>(config: Config<'a>, key: &str, layers: usize) -> Result<Option<&'a [Value]>, Error> {
    let Some(items) = config.list(key)? else { return Ok(None) };
    let own = items.get(..layers);
    own.map(Some).ok_or_else(|| fail(format!("`{key}` has {} items for {layers} layers", items.len())))
}

fn required_float(config: Config<'_>, key: &str) -> Result<f64, Error> {
    config.float(key)?.ok_or_else(|| fail(format!("`{key}` is missing")))
}

/// Returns for each layer whether a table gives its experts to tokens.
fn hash_layers(config: Config<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let first = config.unsigned("num_hash_layers")?.map_or(HASH_LAYERS, |count| count as usize);
    let is_hashed = |kind: &Value| match kind.as_str() {
        Some("hash_moe") => Ok(true),
        Some("moe") => Ok(false),
        _ => Err(fail(format!("`mlp_layer_types` has {kind}, expected hash_moe or moe"))),
    };
    match first_items(config, "mlp_layer_types", layers)? {
        Some(items) => items.iter().map(is_hashed).collect(),
        None => Ok((0..layers).map(|layer| layer < first).collect()),
    }
}

fn add_experts(
    config: Config<'_>,
    blueprint: &mut Blueprint,
    activation: Activation,
    (names, root): (&TensorNames, &str),
    hashed: &[bool],
) -> Result<(), Error> {
    let sizes = ExpertSizes {
        count: config.required("n_routed_experts")?,
        width: config.required("moe_intermediate_size")?,
        top_k: config.required("num_experts_per_tok")?,
        activation,
    };
    let scores = match config.text("scoring_func").unwrap_or("sqrtsoftplus") {
        "sqrtsoftplus" => RouterScores::RootOfSoftplus,
        "sigmoid" => RouterScores::Sigmoid,
        other => return Err(fail(format!("`scoring_func` is `{other}`, expected sqrtsoftplus or sigmoid"))),
    };
    if config.flag("norm_topk_prob")? == Some(false) {
        return Err(fail("`norm_topk_prob` is false, expected true"));
    }
    let shared = config.unsigned("n_shared_experts")?.unwrap_or(1);
    if shared != 1 {
        return Err(fail(format!("`n_shared_experts` is {shared}, expected 1")));
    }
    let scale = required_float(config, "routed_scaling_factor")?;
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let module = format!("{root}layers.{index}.ffn");
        let mut own = experts::experts(names, &module, EXPERT_MODULES, sizes);
        let gated = experts::gated(names, &format!("{module}.shared_experts"), EXPERT_MODULES, sizes.width, activation);
        own.shared = Some(SharedExpert { ffn: Network::Gated(Box::new(gated)), gate: None });
        let router = &mut own.router;
        (router.scores, router.normalize, router.scale) = (scores, true, scale);
        // The usual reader takes the bias for the choice as one of the logits.
        router.projection.bias = None;
        router.bias = Some(Tensor::named(format!("{module}.gate.bias")));
        if hashed[index] {
            given(router, format!("{module}.gate.tid2eid"));
        }
        layer.ffn = Ffn::Experts(Box::new(own));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
