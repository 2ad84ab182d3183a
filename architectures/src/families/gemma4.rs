//! Gemma 4: four norms in a layer, norms of heads and values, other heads on full layers than on
//! sliding ones, and a factor of each layer's output. Small models have embeddings of layers, and
//! last layers that read the keys of earlier ones. Other models use keys as values, or have experts
//! beside a dense network.

use super::gemma::with_scaled_embedding;
use crate::blueprint::{
    Activation, Blueprint, Branch, Ffn, LayerEmbeddings, LayerTable, Matrices, Mixer, Norm, NormKind, Projection, Rows,
    Tensor, TokenInput, View,
};
use crate::config_json::{Config, fail};
use crate::dense::{ALL_NORMS, Defaults, Dense, layer_norm, projection, unweighted_norm};
use crate::experts::{ExpertSizes, MODULES, gated, routed, router};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys, all_but_every};
use crate::{Error, Rope, RopeScaling, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "gemma4",
    model_types: &["gemma4_text", UNIFIED],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
            ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
            ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
            ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
            ("layer_output_scale.weight", "layer_scalar"),
            ("inp_gate", "per_layer_input_gate"),
            ("proj", "per_layer_projection"),
            ("post_norm", "post_per_layer_input_norm"),
            ("ffn_gate_inp.weight", "router.proj.weight"),
            ("ffn_gate_inp.scale", "router.scale"),
            ("ffn_down_exps.scale", "router.per_expert_scale"),
            ("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
            ("ffn_gate_exps", "experts.gate_proj"),
            ("ffn_up_exps", "experts.up_proj"),
            ("ffn_down_exps.weight", "experts.down_proj"),
        ],
        model_names: &[
            ("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"),
            ("per_layer_model_proj.weight", "model.per_layer_model_projection.weight"),
            ("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"),
        ],
        ..GgufForm::not_yet("gemma4")
    },
    hugging_face: HuggingFaceForm::of("Gemma4ForCausalLM", "gemma4_text"),
};

const UNIFIED: &str = "gemma4_unified_text";
/// Numbers that the class of the unified models has for missing keys.
const OF_UNIFIED: &[(&str, f64)] = &[("max_position_embeddings", 262_144.0), ("sliding_window", 1024.0)];

const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), head_dim: Some(256), context: 131_072, theta: THETA };
/// Base of the frequencies of layers with full attention, and of sliding layers.
pub(super) const THETA: f64 = 1_000_000.0;
pub(super) const SLIDING_THETA: f64 = 10_000.0;
/// Share of the heads of layers with full attention that a config without parameters rotates.
const ROTATED: f64 = 0.25;
/// Every sixth layer has full attention.
pub(super) const PATTERN: u64 = 6;
pub(super) const WINDOW: u64 = 512;
/// Tokens with embeddings of layers.
const EMBEDDED_TOKENS: u64 = 262_144;
/// Elements of a head of layers with full attention.
const FULL_HEAD: u64 = 512;

/// Parameters beside those of dense transformers.
pub(super) struct Gemma4Parts {
    /// Key heads and elements of a head, for each layer.
    pub(super) heads: Vec<[u64; 2]>,
    /// Number of last layers that read the keys of earlier ones.
    pub(super) shared: u64,
    /// Width of the feed-forward network of each layer.
    pub(super) widths: Vec<u64>,
    /// Width of the embeddings of layers, and the number of tokens that have them.
    pub(super) embeddings: Option<[u64; 2]>,
    pub(super) experts: Option<ExpertSizes>,
    pub(super) soft_cap: Option<f64>,
}

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = if is_unified(config) { config.with_defaults(OF_UNIFIED) } else { config };
    // Pictures see later pictures; text does not.
    if let Some(other) = config.value("use_bidirectional_attention").filter(|value| value.as_str() != Some("vision")) {
        return Err(fail(format!("`use_bidirectional_attention` is {other}, which cannot be run yet")));
    }
    let padding = config.unsigned("pad_token_id")?.unwrap_or(0);
    if padding != 0 && embeddings(config)?.is_some() {
        return Err(fail(format!("`pad_token_id` is {padding}, expected 0, whose embeddings stand for pictures")));
    }
    let mut dense = Dense {
        activation: config.activation("hidden_activation", Activation::GeluTanh)?,
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.slide_by_config(config, PATTERN, WINDOW)?;
    if let Some(last) = dense.layers.last_mut() {
        // The class gives full attention to the last layer.
        last.window = None;
    }
    let proportional = RopeScaling::Proportional { share: ROTATED, factor: 1.0 };
    let full = config.newer_rope("full_attention", THETA)?;
    let full = full.unwrap_or_else(|| Rope::plain(THETA).scaled(proportional, 1.0));
    let sliding = config.newer_rope("sliding_attention", SLIDING_THETA)?.unwrap_or_else(|| Rope::plain(SLIDING_THETA));
    dense.set_ropes(&full, &sliding);
    dense.layers.iter_mut().for_each(|layer| layer.divided = false);
    let layers = dense.layers.len();
    let shared = config.unsigned("num_kv_shared_layers")?.unwrap_or(0);
    let is_wide = config.flag("use_double_wide_mlp")?.unwrap_or(false);
    let first_shared = (layers as u64).saturating_sub(shared);
    let width = |layer: u64| dense.intermediate.saturating_mul(if is_wide && layer >= first_shared { 2 } else { 1 });
    let parts = Gemma4Parts {
        heads: heads(config, &dense, |count| {
            let same_values = config.flag("attention_k_eq_v")?.unwrap_or(false);
            Ok(count.filter(|_| same_values))
        })?,
        shared,
        widths: (0..layers as u64).map(width).collect(),
        embeddings: embeddings(config)?,
        experts: experts(config)?,
        soft_cap: config.float("final_logit_softcapping")?,
    };
    build(dense, names, "model.", &parts)
}

/// Returns key heads and elements of a head for each layer: by an object with the layers that
/// differ, or else by the values of layers with full attention. `full_kv_heads` returns the key
/// heads of such layers for those of the config.
pub(super) fn heads(
    config: Config<'_>,
    dense: &Dense,
    full_kv_heads: impl FnOnce(Option<u64>) -> Result<Option<u64>, Error>,
) -> Result<Vec<[u64; 2]>, Error> {
    let usual = [dense.kv_heads, dense.head_dim];
    let mut heads = vec![usual; dense.layers.len()];
    if let Some(own) = config.object("per_layer_config")? {
        for key in own.map().keys() {
            // transformers writes indexes with leading zeros.
            let index = key.parse::<usize>().ok().filter(|index| *index < heads.len());
            let index =
                index.ok_or_else(|| fail(format!("`per_layer_config` has `{key}`, expected indexes of layers")))?;
            let Some(layer) = own.object(key)? else { continue };
            heads[index] = [
                layer.unsigned("num_key_value_heads")?.unwrap_or(usual[0]),
                layer.unsigned("head_dim")?.unwrap_or(usual[1]),
            ];
        }
        return Ok(heads);
    }
    let head_dim = config.unsigned("global_head_dim")?.unwrap_or(FULL_HEAD);
    let kv_heads = full_kv_heads(config.unsigned("num_global_key_value_heads")?)?.unwrap_or(usual[0]);
    for (heads, layer) in heads.iter_mut().zip(&dense.layers) {
        if layer.window.is_none() {
            *heads = [kv_heads, head_dim];
        }
    }
    Ok(heads)
}

fn is_unified(config: Config<'_>) -> bool {
    config.text("model_type") == Some(UNIFIED)
}

fn embeddings(config: Config<'_>) -> Result<Option<[u64; 2]>, Error> {
    let default = if is_unified(config) { 0 } else { 256 };
    let width = config.unsigned("hidden_size_per_layer_input")?.unwrap_or(default);
    let rows = config.unsigned("vocab_size_per_layer_input")?.unwrap_or(EMBEDDED_TOKENS);
    Ok((width > 0).then_some([width, rows]))
}

fn experts(config: Config<'_>) -> Result<Option<ExpertSizes>, Error> {
    if !config.flag("enable_moe_block")?.unwrap_or(false) {
        return Ok(None);
    }
    Ok(Some(ExpertSizes {
        count: config.required("num_experts")?,
        width: config.required("moe_intermediate_size")?,
        top_k: config.required("top_k_experts")?,
        activation: Activation::GeluTanh,
    }))
}

/// Reads GGUF metadata. The divisors of the file are those of layers with full attention.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense { activation: Activation::GeluTanh, ..Dense::from_any_gguf(keys)? };
    let layers = dense.layers.len();
    let slides = keys.sliding_layers(layers as u64)?.unwrap_or_else(|| all_but_every(PATTERN, layers as u64));
    dense.slide(&slides, keys.unsigned("attention.sliding_window")?.unwrap_or(WINDOW));
    let full = Rope { dimension: None, ..keys.rope()? };
    let sliding = Rope::plain(keys.float("rope.freq_base_swa")?.unwrap_or(SLIDING_THETA));
    dense.set_ropes(&full, &sliding);
    dense.layers.iter_mut().for_each(|layer| layer.divided = layer.window.is_none());
    let sliding_head = keys.unsigned("attention.key_length_swa")?.unwrap_or(dense.head_dim);
    for key in ["attention.value_length_swa", "rope.dimension_count_swa"] {
        if let Some(other) = keys.unsigned(key)?.filter(|size| *size != sliding_head) {
            return Err(gguf_keys::fail(format!(
                "`{key}` is {other}, expected {sliding_head}, the size of sliding heads"
            )));
        }
    }
    let kv_heads = keys.numbers_of_layers("attention.head_count_kv", layers)?.unwrap_or(vec![dense.kv_heads; layers]);
    let widths = keys.numbers_of_layers("feed_forward_length", layers)?.unwrap_or(vec![dense.intermediate; layers]);
    let head = |slides: &bool| if *slides { sliding_head } else { dense.head_dim };
    let count = keys.unsigned("expert_count")?.unwrap_or(0);
    let embedded = keys.unsigned("embedding_length_per_layer_input")?.unwrap_or(0);
    let parts = Gemma4Parts {
        heads: kv_heads.into_iter().zip(slides.iter().map(head)).map(|(kv_heads, head)| [kv_heads, head]).collect(),
        shared: keys.unsigned("attention.shared_kv_layers")?.unwrap_or(0),
        widths,
        embeddings: (embedded > 0).then_some([embedded, dense.vocabulary]),
        experts: (count > 0)
            .then(|| {
                Ok::<_, Error>(ExpertSizes {
                    count,
                    activation: Activation::GeluTanh,
                    width: keys.required("expert_feed_forward_length")?,
                    top_k: keys.required("expert_used_count")?,
                })
            })
            .transpose()?,
        soft_cap: keys.float("final_logit_softcapping")?.filter(|cap| *cap != 0.0),
    };
    build(dense, names, "model.", &parts)
}

/// Returns the blueprint with all parts of this family. `root` is the prefix of its tensors.
pub(super) fn build(dense: Dense, names: &TensorNames, root: &str, parts: &Gemma4Parts) -> Result<Blueprint, Error> {
    let (epsilon, hidden, activation) = (dense.norm_epsilon, dense.hidden, dense.activation);
    let dense = Dense { norms: ALL_NORMS, head_norms: true, attention_scale: 1.0, ..dense };
    let slides: Vec<bool> = dense.layers.iter().map(|layer| layer.window.is_some()).collect();
    let mut blueprint = with_scaled_embedding(dense).blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let prefix = format!("{root}layers.{index}");
        let own = |module: &str| format!("{prefix}.{module}");
        let source = source_of(index, &slides, parts.shared)?;
        if let Mixer::Attention(attention) = &mut layer.mixer {
            let [kv_heads, head_dim] = parts.heads[index];
            (attention.kv_heads, attention.head_dim, attention.value_dim) = (kv_heads, head_dim, head_dim);
            attention.value_norm = Some(unweighted_norm(epsilon));
            let of = format!("{root}layers.{}.self_attn", source.unwrap_or(index));
            attention.reads_layer = source.map(|source| source as u64);
            attention.key = projection(names, &format!("{of}.k_proj"));
            attention.key_norm = Some(rms_norm(names, &format!("{of}.k_norm"), epsilon));
            let value = projection(names, &format!("{of}.v_proj"));
            attention.value = if names.has(&value.weight.name) { value } else { attention.key.clone() };
        }
        let network = gated(names, &own("mlp"), MODULES, parts.widths[index], activation);
        layer.ffn = Ffn::Gated(Box::new(network));
        if let Some(sizes) = &parts.experts {
            add_experts(layer, names, &prefix, sizes, [epsilon, hidden as f64]);
        }
        layer.token_input = parts.embeddings.map(|_| token_input(names, &prefix, activation, epsilon));
        let scale = own("layer_scalar");
        layer.scale = names.has(&scale).then(|| Tensor::named(scale));
    }
    blueprint.embedding.of_layers = parts.embeddings.map(|own| layer_embeddings(names, own, hidden, epsilon));
    if let Some(output) = &mut blueprint.output {
        output.soft_cap = parts.soft_cap;
    }
    Ok(blueprint)
}

/// Returns the part of a layer that reads the layer's own embedding.
pub(super) fn token_input(names: &TensorNames, prefix: &str, activation: Activation, epsilon: f64) -> TokenInput {
    let own = |module: &str| projection(names, &format!("{prefix}.{module}"));
    TokenInput {
        gate: own("per_layer_input_gate"),
        activation,
        projection: own("per_layer_projection"),
        norm: rms_norm(names, &format!("{prefix}.post_per_layer_input_norm"), epsilon),
    }
}

/// Returns embeddings of layers of this width for so many tokens.
pub(super) fn layer_embeddings(
    names: &TensorNames,
    [width, rows]: [u64; 2],
    hidden: u64,
    epsilon: f64,
) -> LayerEmbeddings {
    LayerEmbeddings {
        width,
        table: Some(LayerTable {
            rows,
            weight: Tensor::named("model.embed_tokens_per_layer.weight"),
            scale: (width as f64).sqrt(),
        }),
        projection: projection(names, "model.per_layer_model_projection"),
        projection_scale: (hidden as f64).powf(-0.5),
        norm: rms_norm(names, "model.per_layer_projection_norm", epsilon),
        sum_scale: 0.5f64.sqrt(),
    }
}

pub(super) fn rms_norm(names: &TensorNames, module: &str, epsilon: f64) -> Norm {
    Norm { kind: NormKind::Rms, ..layer_norm(names, module, epsilon) }
}

/// Returns the layer whose keys a layer reads: the last one of the same kind before the shared
/// layers; `None` if it has its own.
pub(super) fn source_of(index: usize, slides: &[bool], shared: u64) -> Result<Option<usize>, Error> {
    let first_shared = slides.len().saturating_sub(shared as usize);
    if index < first_shared {
        return Ok(None);
    }
    let source = slides[..first_shared].iter().rposition(|own| *own == slides[index]);
    source.map(Some).ok_or_else(|| fail("`num_kv_shared_layers` leaves no layer whose keys the shared layers can read"))
}

/// Puts experts beside the network of a layer. Both read the stream: the network through the
/// layer's norm, the experts through their own, the router through one without weights.
fn add_experts(
    layer: &mut crate::Layer,
    names: &TensorNames,
    prefix: &str,
    sizes: &ExpertSizes,
    [epsilon, hidden]: [f64; 2],
) {
    let norm =
        |module: &str| Some(Norm { kind: NormKind::Rms, ..layer_norm(names, &format!("{prefix}.{module}"), epsilon) });
    let mut router = router(names, &format!("{prefix}.router.proj"), sizes.top_k);
    router.norm =
        Some(Norm { weight: Some(Tensor::named(format!("{prefix}.router.scale"))), ..unweighted_norm(epsilon) });
    router.logit_scale = Some(hidden.powf(-0.5));
    router.normalize = true;
    router.expert_scales = Some(Tensor::named(format!("{prefix}.router.per_expert_scale")));
    let matrices = matrices(names, &format!("{prefix}.experts"), sizes.width);
    let experts =
        crate::Experts { input_norm: norm("pre_feedforward_layernorm_2"), ..routed(*sizes, router, matrices) };
    let network = std::mem::replace(&mut layer.ffn, Ffn::None);
    let before = layer.ffn_residual.before.take();
    layer.ffn = Ffn::Sum(vec![
        Branch { before, ffn: network, after: norm("post_feedforward_layernorm_1") },
        Branch { before: None, ffn: Ffn::Experts(Box::new(experts)), after: norm("post_feedforward_layernorm_2") },
    ]);
}

/// Returns the matrices of the experts: gate and up in one stack, or in one each.
fn matrices(names: &TensorNames, module: &str, width: u64) -> [Matrices; 3] {
    let stack = |name: String, rows: Option<Rows>| {
        let weight = Tensor { name: name.clone(), view: View { rows, ..View::default() } };
        Matrices::Items(Projection { module: name, weight, bias: None, clamps: None })
    };
    let down = stack(format!("{module}.down_proj"), None);
    if names.has(&format!("{module}.gate_proj.weight")) {
        let each = |own: &str| Matrices::Items(projection(names, &format!("{module}.{own}")));
        return [each("gate_proj"), each("up_proj"), down];
    }
    let part = |first: u64| stack(format!("{module}.gate_up_proj"), Some(Rows::run(first, width)));
    [part(0), part(width), down]
}
