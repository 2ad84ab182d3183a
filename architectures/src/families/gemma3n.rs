//! Gemma 3n: four residual streams, learned residuals beside the mixers, embeddings of layers, and
//! last layers that read the keys of earlier ones. The gates of the first layers are sparse.

use super::gemma::with_scaled_embedding;
use super::gemma4::{layer_embeddings, source_of, token_input};
use crate::blueprint::{
    Activation, Blueprint, Ffn, LayerStreams, LearnedResidual, Matrices, Mixer, Norm, NormKind, PredictedStreams,
    StreamPrediction, Streams, Tensor,
};
use crate::config_json::{Config, fail};
use crate::dense::{ALL_NORMS, Defaults, Dense, layer_norm, projection, unweighted_norm};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys, all_but_every};
use crate::{Error, Rope, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "gemma3n",
    model_types: &["gemma3n_text"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
            ("inp_gate", "per_layer_input_gate"),
            ("proj", "per_layer_projection"),
            ("post_norm", "post_per_layer_input_norm"),
            ("altup_correct_coef", "altup.correction_coefs"),
            ("altup_correct_scale.weight", "altup.correct_output_scale"),
            ("altup_predict_coef", "altup.prediction_coefs"),
            ("altup_router", "altup.modality_router"),
            ("altup_router_norm", "altup.router_norm"),
            ("laurel_l", "laurel.linear_left"),
            ("laurel_r", "laurel.linear_right"),
            ("laurel_post_norm", "laurel.post_laurel_norm"),
        ],
        model_names: &[
            ("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"),
            ("per_layer_model_proj.weight", "model.per_layer_model_projection.weight"),
            ("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"),
            ("altup_proj.weight", "model.altup_projections.weight"),
            ("altup_unembd_proj.weight", "model.altup_unembed_projections.weight"),
        ],
        ..GgufForm::not_yet("gemma3n")
    },
    hugging_face: HuggingFaceForm::of("Gemma3nForCausalLM", "gemma3n_text"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(2), head_dim: Some(256), context: 32_768, theta: THETA };
/// Base of the frequencies of layers with full attention, and of sliding layers.
const THETA: f64 = 1_000_000.0;
const SLIDING_THETA: f64 = 10_000.0;
/// Every fifth layer has full attention.
const PATTERN: u64 = 5;
const WINDOW: u64 = 512;
/// Number of first layers with sparse gates, if there are more layers, and their share of zeros, if
/// a config lacks the list.
const SPARSE: (usize, f64) = (10, 0.95);
const SHARED: u64 = 15;
/// Key of the widths of networks, and the width for a missing key.
const WIDTHS: &str = "intermediate_size";
const WIDTH: u64 = 16_384;
/// Width of the embeddings of layers, and number of tokens that have them.
const EMBEDDED: [u64; 2] = [256, 262_144];
const STREAMS: u64 = 4;
const RANK: u64 = 64;
const SOFT_CAP: f64 = 30.0;

/// Parameters beside those of dense transformers.
struct Gemma3nParts {
    /// Number of streams, and index of the active one.
    streams: [u64; 2],
    /// Whether the active stream is scaled for token inputs.
    scales_output: bool,
    /// Rank of the learned residuals.
    rank: u64,
    /// Width of the feed-forward network of each layer.
    widths: Vec<u64>,
    /// Standard deviations up to which the gates of each layer are 0.
    cutoffs: Vec<Option<f64>>,
    /// Number of last layers that read the keys of earlier ones.
    shared: u64,
    /// Width of the embeddings of layers, and number of tokens that have them.
    embeddings: [u64; 2],
    soft_cap: Option<f64>,
}

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
    let mut dense = Dense {
        activation: config.activation("hidden_activation", Activation::GeluTanh)?,
        ..Dense::without_activation(config.without(WIDTHS), DEFAULTS, config.required("num_hidden_layers")?)?
    };
    dense.slide_by_config(config, PATTERN, WINDOW)?;
    let full = config.rope("full_attention", THETA)?;
    let local = config.float("rope_local_base_freq")?.unwrap_or(SLIDING_THETA);
    let sliding = config.newer_rope("sliding_attention", local)?.unwrap_or_else(|| Rope::plain(local));
    dense.set_ropes(&full, &sliding);
    let layers = dense.layers.len();
    let parts = Gemma3nParts {
        streams: [number("altup_num_inputs", STREAMS)?, number("altup_active_idx", 0)?],
        scales_output: config.flag("altup_correct_scale")?.unwrap_or(true),
        rank: number("laurel_rank", RANK)?,
        widths: widths(config, layers)?,
        cutoffs: cutoffs(config, layers)?,
        shared: number("num_kv_shared_layers", SHARED)?,
        embeddings: [
            number("hidden_size_per_layer_input", EMBEDDED[0])?,
            number("vocab_size_per_layer_input", EMBEDDED[1])?,
        ],
        soft_cap: if config.is_null("final_logit_softcapping") {
            None
        } else {
            Some(config.float("final_logit_softcapping")?.unwrap_or(SOFT_CAP))
        },
    };
    build(dense, names, &parts)
}

/// Returns the width of the network of each layer: from a list, or the same for all.
fn widths(config: Config<'_>, layers: usize) -> Result<Vec<u64>, Error> {
    if !config.value(WIDTHS).is_some_and(serde_json::Value::is_array) {
        return Ok(vec![config.unsigned(WIDTHS)?.unwrap_or(WIDTH); layers]);
    }
    let width = |value: &serde_json::Value| {
        value.as_u64().ok_or_else(|| fail(format!("`{WIDTHS}` has {value}, expected a number of rows")))
    };
    Ok(config.per_layer(WIDTHS, layers as u64, width)?.unwrap_or_default())
}

/// Returns the cutoff of each layer for the share of zeros in its gates.
fn cutoffs(config: Config<'_>, layers: usize) -> Result<Vec<Option<f64>>, Error> {
    let cutoff = |share: f64| (share > 0.0).then(|| deviations_below(share));
    let value = |value: &serde_json::Value| match value.as_f64() {
        Some(share) if (0.0..1.0).contains(&share) => Ok(cutoff(share)),
        _ => Err(fail(format!("`activation_sparsity_pattern` has {value}, expected numbers from 0 to less than 1"))),
    };
    if let Some(listed) = config.per_layer("activation_sparsity_pattern", layers as u64, value)? {
        return Ok(listed);
    }
    let sparse = if layers > SPARSE.0 { SPARSE.0 } else { 0 };
    let share = |layer: usize| if layer < sparse { SPARSE.1 } else { 0.0 };
    Ok((0..layers).map(|layer| cutoff(share(layer))).collect())
}

/// Returns the number of standard deviations below which this share of a normal distribution is, by
/// Newton's method on the series of the distribution function.
fn deviations_below(share: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let below = |x: f64| {
        let (mut term, mut sum, mut odd) = (x, x, 1.0);
        while term.abs() > f64::EPSILON * sum.abs() {
            odd += 2.0;
            term *= x * x / odd;
            sum += term;
        }
        0.5 + density(x) * sum
    };
    let mut x = 0.0;
    for _ in 0..50 {
        x = (x - (below(x) - share) / density(x)).clamp(-8.0, 8.0);
    }
    x
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense { activation: Activation::GeluTanh, ..Dense::from_any_gguf(keys)? };
    let layers = dense.layers.len();
    let slides = keys.sliding_layers(layers as u64)?.unwrap_or_else(|| all_but_every(PATTERN, layers as u64));
    dense.slide(&slides, keys.unsigned("attention.sliding_window")?.unwrap_or(WINDOW));
    let sliding = Rope::plain(keys.float("rope.freq_base_swa")?.unwrap_or(SLIDING_THETA));
    let full = Rope { dimension: None, ..keys.rope()? };
    dense.set_ropes(&full, &sliding);
    let cutoffs = keys.floats_of_layers("activation_sparsity_scale", layers)?.unwrap_or_default();
    // Minus infinity means that the gates of a layer are not sparse.
    let mut cutoffs: Vec<_> = cutoffs.into_iter().map(|cutoff| Some(cutoff).filter(|own| own.is_finite())).collect();
    cutoffs.resize(layers, None);
    let rank = keys.gguf.tensors.iter().find(|tensor| tensor.name == "blk.0.laurel_l.weight");
    let rank = rank.and_then(|tensor| tensor.dims.get(1).copied());
    let parts = Gemma3nParts {
        streams: [
            keys.unsigned("altup.num_inputs")?.unwrap_or(STREAMS),
            keys.unsigned("altup.active_idx")?.unwrap_or(0),
        ],
        scales_output: true,
        rank: rank.ok_or_else(|| gguf_keys::fail("there is no `blk.0.laurel_l.weight`"))?,
        widths: keys
            .numbers_of_layers("feed_forward_length", layers)?
            .unwrap_or_else(|| vec![dense.intermediate; layers]),
        cutoffs,
        shared: keys.unsigned("attention.shared_kv_layers")?.unwrap_or(SHARED),
        embeddings: [keys.required("embedding_length_per_layer_input")?, dense.vocabulary],
        soft_cap: Some(keys.float("final_logit_softcapping")?.unwrap_or(SOFT_CAP)).filter(|cap| *cap != 0.0),
    };
    build(dense, names, &parts)
}

/// Returns the blueprint with all parts of this family.
fn build(dense: Dense, names: &TensorNames, parts: &Gemma3nParts) -> Result<Blueprint, Error> {
    let (epsilon, hidden, activation) = (dense.norm_epsilon, dense.hidden, dense.activation);
    let dense = Dense { norms: ALL_NORMS, head_norms: true, attention_scale: 1.0, ..dense };
    let slides: Vec<bool> = dense.layers.iter().map(|layer| layer.window.is_some()).collect();
    let mut blueprint = with_scaled_embedding(dense).blueprint(names);
    let norm = |module: String| Norm { kind: NormKind::Rms, ..layer_norm(names, &module, epsilon) };
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let own = |module: &str| format!("model.layers.{index}.{module}");
        let source = source_of(index, &slides, parts.shared)?;
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.value_norm = Some(unweighted_norm(epsilon));
            let of = format!("model.layers.{}.self_attn", source.unwrap_or(index));
            attention.reads_layer = source.map(|source| source as u64);
            attention.key = projection(names, &format!("{of}.k_proj"));
            attention.key_norm = Some(norm(format!("{of}.k_norm")));
            attention.value = projection(names, &format!("{of}.v_proj"));
        }
        if let Ffn::Gated(gated) = &mut layer.ffn {
            (gated.width, gated.cutoff) = (parts.widths[index], parts.cutoffs[index]);
        }
        layer.learned_residual = Some(Box::new(LearnedResidual {
            rank: parts.rank,
            down: projection(names, &own("laurel.linear_left")),
            up: projection(names, &own("laurel.linear_right")),
            norm: norm(own("laurel.post_laurel_norm")),
            scale: 0.5f64.sqrt(),
        }));
        layer.streams = Some(LayerStreams::Predicted(Box::new(StreamPrediction {
            norm: norm(own("altup.router_norm")),
            router: projection(names, &own("altup.modality_router")),
            predict: Tensor::named(own("altup.prediction_coefs.weight")),
            correct: Tensor::named(own("altup.correction_coefs.weight")),
            output_scale: parts.scales_output.then(|| Tensor::named(own("altup.correct_output_scale"))),
        })));
        layer.token_input = Some(token_input(names, &format!("model.layers.{index}"), activation, epsilon));
    }
    let [count, active] = parts.streams;
    let [enter, leave] =
        ["altup_projections", "altup_unembed_projections"].map(|list| matrices(names, &format!("model.{list}")));
    blueprint.streams = Some(Streams::Predicted(Box::new(PredictedStreams { count, active, enter, leave })));
    blueprint.embedding.of_layers = Some(layer_embeddings(names, parts.embeddings, hidden, epsilon));
    if let Some(output) = &mut blueprint.output {
        output.soft_cap = parts.soft_cap;
    }
    Ok(blueprint)
}

/// Returns the projections of a list: one tensor for each in folders, a stack in GGUF files.
fn matrices(names: &TensorNames, list: &str) -> Matrices {
    if names.has(&format!("{list}.weight")) {
        return Matrices::Items(projection(names, list));
    }
    Matrices::Each(projection(names, &format!("{list}.{{}}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `scipy.stats.norm.ppf`.
    #[test]
    fn cutoffs_are_those_of_the_normal_distribution() {
        for (share, expected) in [
            (0.5, 0.0),
            (0.95, 1.644_853_626_951_472_7),
            (0.999, 3.090_232_306_167_813),
            (0.01, -2.326_347_874_040_841),
        ] {
            assert!((deviations_below(share) - expected).abs() < 1e-9, "{share}");
        }
    }
}
