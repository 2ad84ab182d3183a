//! Gemma 3, text only: four norms a layer, normed heads, windows on most layers, which have a base of frequencies of their
//! own.

use serde_json::{Value as Json, json};

use super::gemma::with_scaled_embedding;
use super::llama;
use crate::blueprint::{Activation, Blueprint, HeadLayout};
use crate::config_json::{self, Config};
use crate::dense::{Dense, NormNames, sliding_but_every};
use crate::family::{Family, GgufForm, HuggingFaceForm, Key};
use crate::gguf_keys::Keys;
use crate::{Error, Rope, RopeScaling, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "gemma3",
    model_types: &["gemma3_text"],
    read_config,
    gguf: &GgufForm {
        architecture: "gemma3",
        read: read_gguf,
        names: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        layout: HeadLayout::Half,
        attention_scale: Some(attention_scale),
        keys,
    },
    hugging_face: HuggingFaceForm {
        class: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        activation_key: "hidden_activation",
        norm_offset: 1.0,
        fields,
    },
};

/// Every sixth layer sees everything; older files have no key for it, and newer ones no need of it.
const PATTERN: u64 = 6;
/// The base of the frequencies of sliding layers, where nothing says another.
const SLIDING_THETA: f64 = 10_000.0;

const NORMS: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: Some("post_attention_layernorm"),
    before_ffn: Some("pre_feedforward_layernorm"),
    after_ffn: Some("post_feedforward_layernorm"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if config.value(key).is_some() {
            let reason = format!("`{key}` is set; Gemma 3 has none, and it cannot be run yet");
            return Err(config_json::fail(reason));
        }
    }
    let dense = Dense {
        activation: config.activation("hidden_activation", Activation::GeluTanh)?,
        attention_scale: config.float("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5),
        norm_offset: 1.0,
        tied: config.flag("tie_word_embeddings")?.unwrap_or(true),
        ..Dense::from_config(config)?
    };
    let layers = dense.layers.len() as u64;
    let slides = match config.sliding_layers(layers)? {
        Some(slides) => slides,
        None => match config.unsigned("sliding_window_pattern")?.unwrap_or(PATTERN) {
            0 => return Err(config_json::fail("`sliding_window_pattern` is 0")),
            pattern => sliding_but_every(pattern, layers),
        },
    };
    let window = config.unsigned("sliding_window")?.unwrap_or(4096);
    let rope = match config.newer_rope("sliding_attention", 10_000.0)? {
        Some(rope) => rope,
        None => Rope::plain(config.float("rope_local_base_freq")?.unwrap_or(SLIDING_THETA)),
    };
    Ok(sliding(dense, &slides, window, &rope).blueprint(names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    /// The 27B model scales by `hidden / heads` instead of the head size; it alone has so many layers.
    const LAYERS_OF_27B: usize = 62;
    let mut dense = Dense { activation: Activation::GeluTanh, ..Dense::from_gguf(keys)? };
    if dense.layers.len() == LAYERS_OF_27B && keys.float("attention.scale")?.is_none() {
        dense.attention_scale = (dense.hidden as f64 / dense.heads as f64).powf(-0.5);
    }
    let layers = dense.layers.len() as u64;
    let slides = keys.sliding_layers(layers)?.unwrap_or_else(|| sliding_but_every(PATTERN, layers));
    let window = keys.unsigned("attention.sliding_window")?.unwrap_or(1024);
    let rope = Rope::plain(keys.float("rope.freq_base_swa")?.unwrap_or(SLIDING_THETA));
    Ok(sliding(dense, &slides, window, &rope).blueprint(names))
}

fn sliding(dense: Dense, slides: &[bool], window: u64, rope: &Rope) -> Dense {
    let mut dense = with_scaled_embedding(Dense { norms: NORMS, head_norms: true, ..dense });
    dense.slide(slides, window);
    for layer in dense.layers.iter_mut().filter(|layer| layer.window.is_some()) {
        (layer.rope, layer.divided) = (Some(rope.clone()), false);
    }
    dense
}

fn attention_scale(blueprint: &Blueprint) -> f64 {
    match blueprint.attentions().next() {
        Some(attention) if blueprint.layers.len() == 62 => {
            (blueprint.hidden as f64 / attention.heads as f64).powf(-0.5)
        }
        _ => llama::by_head_size(blueprint),
    }
}

fn keys(blueprint: &Blueprint) -> Result<Vec<Key>, String> {
    llama::only_activation(blueprint, Activation::GeluTanh, "GELU (tanh)")?;
    let mut keys: Vec<Key> = Vec::new();
    let slides: Vec<bool> = blueprint.attentions().map(|attention| attention.window.is_some()).collect();
    let pattern = sliding_pattern(&slides).ok_or("which layers slide follows no pattern that GGUF can say")?;
    if pattern != PATTERN {
        keys.push(("attention.sliding_window_pattern", (pattern as u32).into()));
    }
    let rope_of = |slides: bool| {
        let mut attentions = blueprint.attentions().filter(move |attention| attention.window.is_some() == slides);
        attentions.find_map(|attention| attention.rope.as_ref())
    };
    if rope_of(false).is_some_and(|rope| matches!(rope.scaling, RopeScaling::Llama3 { .. })) {
        return Err("Llama 3's RoPE scaling cannot be said for this architecture".to_owned());
    }
    match rope_of(true) {
        None => {}
        Some(Rope { theta, scaling: RopeScaling::None, .. }) if (theta - SLIDING_THETA).abs() < f64::EPSILON => {}
        Some(Rope { theta, scaling: RopeScaling::None, .. }) => {
            keys.push(("rope.freq_base_swa", (*theta as f32).into()));
        }
        Some(_) => return Err("the RoPE of sliding layers is scaled, which GGUF cannot say".to_owned()),
    }
    Ok(keys)
}

/// The `n` for which every `n`-th layer does not slide and all others do. Where there are too few layers to tell, the
/// usual one is preferred.
fn sliding_pattern(sliding: &[bool]) -> Option<u64> {
    let fits = |n: u64| (1u64..).zip(sliding).all(|(layer, slides)| *slides != layer.is_multiple_of(n));
    let usual = [PATTERN].into_iter();
    usual.chain(1..=sliding.len() as u64 + 1).find(|n| fits(*n))
}

fn fields(blueprint: &Blueprint, has: &dyn Fn(&str) -> bool) -> Vec<(&'static str, Json)> {
    let kind = |window: Option<u64>| if window.is_some() { "sliding_attention" } else { "full_attention" };
    let kinds: Vec<&str> = blueprint.attentions().map(|attention| kind(attention.window)).collect();
    let sliding = blueprint.attentions().find(|attention| attention.window.is_some());
    let any = sliding.or(blueprint.attentions().next());
    let theta = any.and_then(|attention| attention.rope.as_ref()).map_or(SLIDING_THETA, |rope| rope.theta);
    let scale = any.map_or(1.0, |attention| attention.scale);
    vec![
        ("attention_bias", has(".o_proj.bias").into()),
        ("attn_logit_softcapping", Json::Null),
        ("final_logit_softcapping", Json::Null),
        ("layer_types", json!(kinds)),
        ("query_pre_attn_scalar", query_scalar(scale)),
        ("rope_local_base_freq", theta.into()),
        ("sliding_window", json!(sliding.and_then(|attention| attention.window))),
    ]
}

/// What the square root is taken of: a whole number, but for rounding.
fn query_scalar(attention_scale: f64) -> Json {
    let scalar = attention_scale.powi(-2);
    let whole = scalar.round();
    if (scalar - whole).abs() < 1e-6 { (whole as i64).into() } else { scalar.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, describe};

    #[test]
    fn finds_the_pattern() {
        let layers = |n: u64, pattern: u64| (1..=n).map(|layer| layer % pattern != 0).collect::<Vec<bool>>();
        for (sliding, expect) in [
            (layers(12, 6), Some(6)),
            (layers(4, 3), Some(3)),
            (layers(4, 6), Some(6)),
            (layers(7, 1), Some(1)),
            (vec![false, true, true], None),
        ] {
            assert_eq!(sliding_pattern(&sliding), expect, "{sliding:?}");
        }
        assert_eq!(query_scalar(256f64.powf(-0.5)), json!(256));
    }

    #[test]
    fn too_many_layers_are_refused_first() {
        let raw = br#"{"model_type":"gemma3_text","hidden_size":64,"intermediate_size":128,"vocab_size":320,
            "num_hidden_layers":4398046511104,"num_attention_heads":4}"#;
        let error = describe(Document::Config(raw), &TensorNames::default()).expect_err("too many layers");
        assert!(error.to_string().contains("number of layers is 4398046511104"), "{error}");
    }
}
