//! Muse Glimmer: a normed embedding, norms before and after the parts of a layer, norms of queries
//! and keys without weights, a gate of each attention output, windows and `RoPE` on three of four
//! layers.

use crate::blueprint::{Activation, AttentionGate, Blueprint, Norm};
use crate::config_json::{Config, fail};
use crate::dense::{ALL_NORMS, Defaults, Dense, LLAMA, projection, unweighted_norm};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{Keys, all_but_every};
use crate::{Error, HeadLayout, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "muse_glimmer",
    model_types: &["muse_glimmer_text"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
            ("attn_gate", "self_attn.gate_proj"),
        ],
        layout: HeadLayout::Interleaved,
        ..GgufForm::not_yet("muse-glimmer")
    },
    hugging_face: HuggingFaceForm::of("MuseGlimmerForConditionalGeneration", "muse_glimmer_text"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(2), head_dim: Some(128), context: 131_072, ..LLAMA };
/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[("rms_norm_eps", 1e-5)];
/// Epsilon of the norms behind attention and feed-forward network.
const POST_EPSILON: f64 = 1e-8;
/// Every fourth layer has full attention, counted backwards from the last one.
const PATTERN: u64 = 4;
const WINDOW: u64 = 2048;
const QUERY_SCALE: f64 = 3.87;
const OUTPUT_SCALE: f64 = 0.196_116_135_138_184_04;
const SOFT_CAP: f64 = 20.0;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let mut dense = Dense {
        activation: config.activation("hidden_activation", Activation::Silu)?,
        norm_offset: 1.0,
        output_scale: Some(config.float("output_multiplier")?.unwrap_or(OUTPUT_SCALE)),
        ..Dense::without_activation(config, DEFAULTS, config.required("num_hidden_layers")?)?
    };
    let layers = dense.layers.len() as u64;
    let slides = config.sliding_layers(layers)?.unwrap_or_else(|| slides_from_the_end(layers));
    dense.slide(&slides, config.unsigned("sliding_window")?.unwrap_or(WINDOW));
    let base = |value: &serde_json::Value| {
        value.as_f64().ok_or_else(|| fail(format!("`layer_rope_theta` has {value}, expected numbers")))
    };
    // As transformers does: a layer with the base 0 has no `RoPE`, all others have that of
    // `rope_theta`.
    let bases = config.per_layer("layer_rope_theta", layers, base)?;
    let rotates = bases.map(|bases| bases.into_iter().map(|base| base != 0.0).collect());
    dense.rotate_only(&rotates.unwrap_or_else(|| slides_from_the_end(layers)));
    dense.attention_scale *= config.float("qk_scale_factor")?.unwrap_or(QUERY_SCALE);
    let epsilons = [dense.norm_epsilon, config.float("post_norm_eps")?.unwrap_or(POST_EPSILON)];
    let soft_cap = config.float("final_logit_softcapping")?.unwrap_or(SOFT_CAP);
    let mut blueprint = build(dense, names, epsilons, Some(soft_cap));
    for attention in blueprint.attentions_mut() {
        attention.query_norm = Some(unweighted_norm(epsilons[0]));
        attention.key_norm = Some(unweighted_norm(epsilons[0]));
    }
    // The last norm has no offset.
    if let Some(norm) = &mut blueprint.norm {
        norm.offset = 0.0;
    }
    Ok(blueprint)
}

/// Returns for each layer whether it has a window, if the config has no list.
fn slides_from_the_end(layers: u64) -> Vec<bool> {
    (0..layers).map(|layer| !(layers - 1 - layer).is_multiple_of(PATTERN)).collect()
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense {
        head_norms: true,
        layout: HeadLayout::Interleaved,
        output_scale: Some(keys.float("logit_scale")?.unwrap_or(OUTPUT_SCALE)),
        ..Dense::from_gguf(keys)?
    };
    let layers = dense.layers.len() as u64;
    let slides = keys.sliding_layers(layers)?.unwrap_or_else(|| all_but_every(PATTERN, layers));
    dense.slide_by_keys(keys, PATTERN, WINDOW)?;
    dense.rotate_only(&slides);
    let epsilons = [dense.norm_epsilon, POST_EPSILON];
    let soft_cap = keys.float("final_logit_softcapping")?.filter(|cap| *cap != 0.0);
    Ok(build(dense, names, epsilons, soft_cap))
}

/// Returns the blueprint with the epsilons of norms before and after the parts of a layer.
fn build(dense: Dense, names: &TensorNames, [epsilon, post]: [f64; 2], soft_cap: Option<f64>) -> Blueprint {
    let mut blueprint = Dense { norms: ALL_NORMS, ..dense }.blueprint(names);
    blueprint.embedding.norm = Some(unweighted_norm(epsilon));
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        let gate = projection(names, &format!("model.layers.{index}.self_attn.gate_proj"));
        attention.gate = Some(AttentionGate::sigmoid(gate));
    }
    let set = |norm: Option<&mut Norm>| norm.into_iter().for_each(|norm| norm.epsilon = post);
    for layer in &mut blueprint.layers {
        set(layer.mixer_residual.after.as_mut());
        set(layer.ffn_residual.after.as_mut());
    }
    if let Some(output) = &mut blueprint.output {
        output.soft_cap = soft_cap;
    }
    blueprint
}
