//! LFM2: gated short convolutions, and attention in a few layers.

use crate::blueprint::{Blueprint, Ffn, Mixer, Residual, Rows, ShortConv, Tensor};
use crate::config_json::Config;
use crate::config_json::share;
use crate::dense::{Defaults, Dense, LLAMA, projection};
use crate::experts::gated;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::name_tables::Table;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "lfm2",
    model_types: &["lfm2"],
    read_config,
    gguf: &GgufForm { read: Some(from_gguf), names: NAMES, model_names: MODEL_NAMES, ..GgufForm::not_yet("lfm2") },
    hugging_face: HuggingFaceForm::of("Lfm2ForCausalLM", "lfm2"),
};

pub(super) const NAMES: Table = &[
    ("attn_norm", "operator_norm"),
    ("attn_output", "self_attn.out_proj"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.out_proj", "conv.out_proj"),
];
pub(super) const MODEL_NAMES: Table = &[("token_embd_norm.weight", "model.embedding_norm.weight")];

pub(super) const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), context: 128_000, theta: 1_000_000.0, ..LLAMA };
/// Default kernel size of a convolution, in positions.
const KERNEL: u64 = 3;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    dense.norm_epsilon = config.float("norm_eps")?.unwrap_or(1e-5);
    dense.intermediate = width(config)?;
    with_mixers(dense, config, names)
}

/// Returns the blueprint with the mixers of a config.
pub(super) fn with_mixers(dense: Dense, config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let kernel = config.unsigned("conv_L_cache")?.unwrap_or(KERNEL);
    let attends = attention_layers(config, dense.layers.len() as u64)?;
    Ok(mixed(dense, names, &attends, kernel))
}

/// Reads GGUF metadata. Layers without key and value heads are convolutions.
pub(super) fn from_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense::from_gguf(keys)?;
    let layers = dense.layers.len();
    let attends = keys.layers_with("attention.head_count_kv", layers)?.unwrap_or_else(|| vec![true; layers]);
    let kernel = keys.unsigned("shortconv.l_cache")?.unwrap_or(KERNEL);
    Ok(mixed(dense, names, &attends, kernel))
}

/// Returns the blueprint with the norms, networks and mixers of this family.
fn mixed(dense: Dense, names: &TensorNames, attends: &[bool], kernel: u64) -> Blueprint {
    // Files of Ollama's converter use the usual name.
    let final_norm = if names.has("model.norm.weight") { "norm" } else { "embedding_norm" };
    let dense = Dense { final_norm, ..dense };
    let (hidden, width) = (dense.hidden, dense.intermediate);
    let norm = |index: usize, module: &str| dense.norm(names, &format!("model.layers.{index}.{module}"));
    let norms: Vec<_> = (0..dense.layers.len())
        .map(|index| {
            ["operator_norm", "ffn_norm", "self_attn.q_layernorm", "self_attn.k_layernorm"].map(|own| norm(index, own))
        })
        .collect();
    let activation = dense.activation;
    let mut blueprint = dense.blueprint(names);
    for ((index, layer), [before, ffn, query, key]) in blueprint.layers.iter_mut().enumerate().zip(norms) {
        let prefix = format!("model.layers.{index}");
        layer.mixer_residual = Residual { before: Some(before), ..Residual::default() };
        layer.ffn_residual = Residual { before: Some(ffn), ..Residual::default() };
        let modules = ["w1", "w3", "w2"];
        layer.ffn = Ffn::Gated(Box::new(gated(names, &format!("{prefix}.feed_forward"), modules, width, activation)));
        if !attends[index] {
            layer.mixer = Mixer::ShortConv(Box::new(convolution(names, &format!("{prefix}.conv"), hidden, kernel)));
        } else if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.output = projection(names, &format!("{prefix}.self_attn.out_proj"));
            (attention.query_norm, attention.key_norm) = (Some(query), Some(key));
        }
    }
    blueprint
}

/// Returns a convolution. The first projection has the rows of B, then of C, then of the input of
/// the convolution.
pub(super) fn convolution(names: &TensorNames, module: &str, width: u64, kernel: u64) -> ShortConv {
    let whole = projection(names, &format!("{module}.in_proj"));
    let part = |index: u64| whole.rows(Rows::run(index.saturating_mul(width), width));
    let bias = format!("{module}.conv.bias");
    ShortConv {
        width,
        kernel,
        before: part(0),
        after: part(1),
        input: part(2),
        convolution: Tensor::named(format!("{module}.conv.weight")),
        convolution_bias: names.has(&bias).then(|| Tensor::named(bias)),
        output: projection(names, &format!("{module}.out_proj")),
    }
}

/// Returns the width of the feed-forward networks: by default two thirds of the config's value,
/// rounded up to a multiple.
fn width(config: Config<'_>) -> Result<u64, Error> {
    let said = match config.unsigned("block_ff_dim")? {
        Some(width) => width,
        None => config.required("intermediate_size")?,
    };
    if !config.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(said);
    }
    let mut width = said.saturating_mul(2) / 3;
    if let Some(multiplier) = config.float("block_ffn_dim_multiplier")? {
        width = share(width, multiplier);
    }
    let multiple = config.step("block_multiple_of", 256)?;
    Ok(width.min(u64::from(u32::MAX)).div_ceil(multiple).saturating_mul(multiple))
}

/// Returns for each layer whether it is attention: by a list of layer types or of indices.
fn attention_layers(config: Config<'_>, layers: u64) -> Result<Vec<bool>, Error> {
    if let Some(others) = config.layers_of_type("conv", layers)? {
        return Ok(others.into_iter().map(|other| !other).collect());
    }
    let Some(indexes) = config.list("full_attn_idxs")? else { return Ok(vec![true; layers as usize]) };
    Ok((0..layers).map(|layer| indexes.iter().any(|index| index.as_u64() == Some(layer))).collect())
}
