//! Gemma 3, text only: four norms in a layer, norms of heads, windows on most layers. Sliding
//! layers have a separate base of frequencies.

use serde_json::{Value as Json, json};

use super::gemma::with_scaled_embedding;
use super::llama;
use crate::blueprint::{Activation, Blueprint, EmbedderLayer, HeadLayout};
use crate::config_json::{self, Config};
use crate::dense::{ALL_NORMS, Defaults, Dense, layer_types, projection};
use crate::family::{Alias, Family, GgufForm, HuggingFaceForm, Key};
use crate::gguf_keys::{self, Keys};
use crate::{Error, Rope, RopeScaling, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "gemma3",
    model_types: &["gemma3_text"],
    read_config,
    gguf: &GgufForm {
        architecture: "gemma3",
        also: &[Alias::of(EMBEDDING)],
        read: Some(read_gguf),
        names: name_tables::ALL_NORMS,
        model_names: &[],
        layout: HeadLayout::Half,
        attention_scale: Some(attention_scale),
        keys,
    },
    hugging_face: HuggingFaceForm {
        class: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        is_written: true,
        activation_key: "hidden_activation",
        norm_offset: 1.0,
        layout: HeadLayout::Half,
        fields,
    },
};

/// Architecture of `EmbeddingGemma` in GGUF files.
const EMBEDDING: &str = "gemma-embedding";
const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), head_dim: Some(256), context: 131_072, theta: THETA };
/// Default base of the frequencies of layers with full attention.
const THETA: f64 = 1_000_000.0;
/// Every sixth layer has full attention. Older files have no key for it, and newer files do not
/// need one.
const PATTERN: u64 = 6;
/// Default base of the frequencies of sliding layers.
const SLIDING_THETA: f64 = 10_000.0;
/// Context from which on models were trained with global frequencies divided by [`LONG_FACTOR`].
/// The 1B model and smaller ones have a shorter context.
const LONG: u64 = 131_072;
const LONG_FACTOR: f64 = 8.0;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if config.value(key).is_some() {
            let reason = format!("`{key}` is set; Gemma 3 has none, and it cannot be run yet");
            return Err(config_json::fail(reason));
        }
    }
    let mut dense = Dense {
        activation: config.activation("hidden_activation", Activation::GeluTanh)?,
        attention_scale: config.float("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5),
        norm_offset: 1.0,
        ..Dense::from_config(config, DEFAULTS)?
    };
    dense.slide_by_config(config, config.step("sliding_window_pattern", PATTERN)?, 4096)?;
    let sees_all = config.flag("use_bidirectional_attention")?.unwrap_or(false);
    if sees_all {
        see_both_sides(&mut dense);
    }
    let theta = config.float("rope_local_base_freq")?.unwrap_or(SLIDING_THETA);
    let rope = config.newer_rope("sliding_attention", theta)?.unwrap_or_else(|| Rope::plain(theta));
    Ok(embedding_only(with_sliding_rope(dense, &rope).blueprint(names), sees_all))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    // `final_logit_softcapping` is ignored on purpose. Files of Ollama's converter state 30, but
    // the models were not trained with it and readers do not apply it.
    if keys.float("attn_logit_softcapping")?.is_some_and(|cap| cap != 0.0) {
        return Err(gguf_keys::fail("`gemma3.attn_logit_softcapping` is set; it cannot be run yet"));
    }
    let mut dense = Dense { activation: Activation::GeluTanh, ..Dense::from_any_gguf(keys)? };
    // Files of Ollama's converter have the usual architecture, and state how rows are pooled.
    let is_pooled = keys.unsigned("pooling_type")?.is_some_and(|kind| kind > 0);
    let sees_all = keys.architecture == EMBEDDING || is_pooled || keys.flag("attention.causal")? == Some(false);
    dense.norm_epsilon = keys.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-6);
    // Ollama's converter uses other keys for the two bases.
    let theta = |key: &str, other: &str| {
        keys.float(key).and_then(|own| own.map_or_else(|| keys.float(other), |own| Ok(Some(own))))
    };
    let global = theta("rope.freq_base", "rope.global.freq_base")?.unwrap_or(10_000.0);
    for layer in &mut dense.layers {
        layer.rope.iter_mut().for_each(|rope| rope.theta = global);
    }
    if keys.float("attention.scale")?.is_none() {
        dense.attention_scale = unsaid_scale(dense.layers.len(), dense.hidden, dense.heads, dense.head_dim);
    }
    dense.slide_by_keys(keys, PATTERN, 1024)?;
    if dense.context >= LONG && !says_scaling(keys) {
        for rope in dense.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
            rope.scaling = RopeScaling::Linear { factor: LONG_FACTOR };
        }
    }
    let rope = Rope::plain(theta("rope.freq_base_swa", "rope.local.freq_base")?.unwrap_or(SLIDING_THETA));
    if sees_all {
        see_both_sides(&mut dense);
    }
    let mut blueprint = embedding_only(with_sliding_rope(dense, &rope).blueprint(names), sees_all);
    if sees_all {
        blueprint.embedder = embedder(keys, names)?;
    }
    Ok(blueprint)
}

/// Returns the projections of `EmbeddingGemma` behind pooling, under the names of llama.cpp's or of
/// Ollama's converter. Files may lack them.
fn embedder(keys: Keys<'_>, names: &TensorNames) -> Result<Vec<EmbedderLayer>, Error> {
    // The sizes of the tensors are the same.
    for key in ["dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"] {
        keys.unsigned(key)?;
    }
    let modules = ["dense_2", "dense_3", "dense.0", "dense.1"];
    let own = modules.into_iter().filter(|module| names.has(&format!("{module}.weight")));
    let layer = |module: &str| {
        let projection = projection(names, module);
        let tensor = keys.gguf.tensors.iter().find(|tensor| tensor.name == projection.weight.name);
        let dim = |at: usize| tensor.and_then(|tensor| tensor.dims.get(at).copied()).unwrap_or(0);
        EmbedderLayer { inputs: dim(0), width: dim(1), projection, activation: None }
    };
    Ok(own.map(layer).collect())
}

/// Extends the windows to both sides.
fn see_both_sides(dense: &mut Dense) {
    for layer in &mut dense.layers {
        layer.window = layer.window.map(|window| window / 2 + 1);
    }
}

/// Returns the model, without an output if all tokens see each other.
fn embedding_only(mut blueprint: Blueprint, sees_all: bool) -> Blueprint {
    if sees_all {
        (blueprint.causal, blueprint.output) = (false, None);
    }
    blueprint
}

/// True if a file states the scaling of frequencies. Files of Ollama's converter do not, although
/// the models use scaling.
fn says_scaling(keys: Keys<'_>) -> bool {
    let known = ["rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"];
    known.iter().any(|key| keys.gguf.get(&keys.name(key)).is_some())
}

fn with_sliding_rope(dense: Dense, rope: &Rope) -> Dense {
    let mut dense = with_scaled_embedding(Dense { norms: ALL_NORMS, head_norms: true, ..dense });
    dense.set_sliding_rope(rope);
    for layer in dense.layers.iter_mut().filter(|layer| layer.window.is_some()) {
        layer.divided = false;
    }
    dense
}

/// Returns the scale of scores that llama.cpp uses if no key states it: by `hidden / heads` for the
/// 27B model, the only one with this many layers, else by the head size.
fn unsaid_scale(layers: usize, hidden: u64, heads: u64, head_dim: u64) -> f64 {
    const LAYERS_OF_27B: usize = 62;
    let size = if layers == LAYERS_OF_27B { hidden as f64 / heads as f64 } else { head_dim as f64 };
    size.powf(-0.5)
}

fn attention_scale(blueprint: &Blueprint) -> f64 {
    let scale = |attention: &crate::Attention| {
        unsaid_scale(blueprint.layers.len(), blueprint.hidden, attention.heads, attention.head_dim)
    };
    blueprint.attentions().next().map_or(1.0, scale)
}

fn keys(blueprint: &Blueprint) -> Result<Vec<Key>, String> {
    llama::only_activation(blueprint, Activation::GeluTanh, "GELU (tanh)")?;
    let mut keys: Vec<Key> = Vec::new();
    let slides: Vec<bool> = blueprint.attentions().map(|attention| attention.window.is_some()).collect();
    let pattern = sliding_pattern(&slides).ok_or("the sliding layers follow no pattern that GGUF can express")?;
    if pattern != PATTERN {
        keys.push(("attention.sliding_window_pattern", (pattern as u32).into()));
    }
    let scales = blueprint.attentions().filter_map(|attention| attention.rope.as_ref()).any(is_scaled);
    if blueprint.context >= LONG && !scales {
        // Readers assume scaling for a model with a long context, unless the file states otherwise.
        keys.push(("rope.scaling.type", "none".into()));
    }
    let mut sliding = blueprint.attentions().filter(|attention| attention.window.is_some());
    llama::only_usual_frequencies(blueprint)?;
    match sliding.find_map(|attention| attention.rope.as_ref()) {
        None => {}
        Some(Rope { theta, scaling: RopeScaling::None, .. }) if (theta - SLIDING_THETA).abs() < f64::EPSILON => {}
        Some(Rope { theta, scaling: RopeScaling::None, .. }) => {
            keys.push(("rope.freq_base_swa", (*theta as f32).into()));
        }
        Some(_) => return Err("the RoPE of sliding layers is scaled, which GGUF cannot express".to_owned()),
    }
    Ok(keys)
}

fn is_scaled(rope: &Rope) -> bool {
    rope.scaling != RopeScaling::None
}

/// Returns the `n` for which every `n`-th layer does not slide and all other layers do. If there
/// are too few layers to decide, the usual value takes precedence.
fn sliding_pattern(sliding: &[bool]) -> Option<u64> {
    let fits = |n: u64| (1u64..).zip(sliding).all(|(layer, slides)| *slides != layer.is_multiple_of(n));
    let usual = [PATTERN].into_iter();
    usual.chain(1..=sliding.len() as u64 + 1).find(|n| fits(*n))
}

fn fields(blueprint: &Blueprint, has: &dyn Fn(&str) -> bool) -> Vec<(&'static str, Json)> {
    let sliding = blueprint.attentions().find(|attention| attention.window.is_some());
    let any = sliding.or(blueprint.attentions().next());
    let theta = any.and_then(|attention| attention.rope.as_ref()).map_or(SLIDING_THETA, |rope| rope.theta);
    let scale = any.map_or(1.0, |attention| attention.scale);
    vec![
        llama::attention_bias(has),
        ("attn_logit_softcapping", Json::Null),
        ("final_logit_softcapping", Json::Null),
        ("layer_types", json!(layer_types(blueprint))),
        ("query_pre_attn_scalar", query_scalar(scale)),
        ("rope_local_base_freq", theta.into()),
        ("sliding_window", json!(sliding.and_then(|attention| attention.window))),
    ]
}

/// Returns the number whose inverse square root is the scale; an integer, except for rounding.
fn query_scalar(attention_scale: f64) -> Json {
    let scalar = attention_scale.powi(-2);
    let whole = scalar.round();
    if (scalar - whole).abs() < 1e-6 { (whole as i64).into() } else { scalar.into() }
}

#[cfg(test)]
mod tests {
    use formats::gguf::{NewTensor, OwnedValue, write_header};
    use formats::{GgmlType, Gguf};

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

    fn of_gguf(more: &[(&str, OwnedValue)]) -> Result<Blueprint, Error> {
        with_tensors(more, &[])
    }

    fn with_tensors(more: &[(&str, OwnedValue)], tensors: &[(&str, [u64; 2])]) -> Result<Blueprint, Error> {
        let number = |key: &str, number: u32| (format!("gemma3.{key}"), OwnedValue::from(number));
        let mut keys = vec![
            ("general.architecture".to_owned(), OwnedValue::from("gemma3")),
            number("block_count", 6),
            number("context_length", 64),
            number("embedding_length", 64),
            number("feed_forward_length", 64),
            number("attention.head_count", 4),
            number("vocab_size", 32),
        ];
        keys.extend(more.iter().map(|(key, value)| (format!("gemma3.{key}"), value.clone())));
        let tensor = |(name, dims): &(&str, [u64; 2])| NewTensor {
            name: (*name).to_owned(),
            kind: GgmlType::F32,
            dims: dims.to_vec(),
        };
        let tensors: Vec<NewTensor> = tensors.iter().map(tensor).collect();
        let header = write_header(&keys, &tensors).expect("a header");
        let gguf = Gguf::parse_header(&header.bytes).expect("it is read");
        let names = tensors.into_iter().map(|tensor| tensor.name).collect();
        describe(Document::Gguf(&gguf), &names).map(|architecture| architecture.blueprint)
    }

    #[test]
    fn embeddings_are_projected_behind_pooling() {
        let pooled = [("pooling_type", 1u32.into())];
        for modules in [["dense.0.weight", "dense.1.weight"], ["dense_2.weight", "dense_3.weight"]] {
            let tensors = [(modules[1], [96, 24]), (modules[0], [64, 96])];
            let blueprint = with_tensors(&pooled, &tensors).expect("it is described");
            let layers: Vec<_> =
                blueprint.embedder.iter().map(|own| (own.projection.weight.name.as_str(), own.width)).collect();
            assert_eq!(layers, [(modules[0], 96), (modules[1], 24)]);
            assert_eq!(blueprint.embedding_width(), 24);
            assert!(with_tensors(&[], &tensors).expect("it is described").embedder.is_empty(), "it generates");
        }
    }

    fn bases(blueprint: &Blueprint) -> Vec<(Option<u64>, f64)> {
        let of =
            |attention: &crate::Attention| (attention.window, attention.rope.as_ref().map_or(0.0, |rope| rope.theta));
        blueprint.attentions().map(of).skip(4).collect()
    }

    #[test]
    fn keys_of_either_converter_are_read() {
        let (global, local) = (OwnedValue::from(1e6f32), OwnedValue::from(5000.0f32));
        for more in [
            [("rope.freq_base", global.clone()), ("rope.freq_base_swa", local.clone())],
            [("rope.global.freq_base", global), ("rope.local.freq_base", local)],
        ] {
            let blueprint = of_gguf(&more).expect("it is described");
            assert_eq!(bases(&blueprint), [(Some(1024), 5000.0), (None, 1e6)], "{more:?}");
            assert!((blueprint.epsilon() - 1e-6).abs() < 1e-12);
        }
        // Defaults of llama.cpp.
        assert_eq!(bases(&of_gguf(&[]).expect("it is described")), [(Some(1024), 10_000.0), (None, 10_000.0)]);
        let off = of_gguf(&[("attention.sliding_window", 0u32.into())]).expect("it is described");
        assert_eq!(bases(&off), [(None, 10_000.0); 2], "a window of 0 is none");
        assert!(of_gguf(&[("final_logit_softcapping", 30.0f32.into())]).is_ok());
        let error = of_gguf(&[("attn_logit_softcapping", 50.0f32.into())]).expect_err("it cannot be run").to_string();
        assert!(error.contains("attn_logit_softcapping"), "{error}");
        for more in [("attention.causal", false.into()), ("pooling_type", 1u32.into())] {
            let blueprint = of_gguf(&[more]).expect("it is described");
            assert!(!blueprint.causal && blueprint.output.is_none());
            assert_eq!(bases(&blueprint), [(Some(513), 10_000.0), (None, 10_000.0)], "both sides");
        }
    }

    #[test]
    fn a_config_may_leave_out_what_its_class_has() {
        let raw = br#"{"model_type":"gemma3_text","hidden_size":64,"intermediate_size":128,"vocab_size":320,
            "num_hidden_layers":6,"num_attention_heads":8}"#;
        let blueprint = describe(Document::Config(raw), &TensorNames::default()).expect("a config").blueprint;
        let attention = blueprint.attentions().next().expect("a layer");
        assert_eq!((attention.heads, attention.kv_heads, attention.head_dim), (8, 4, 256));
        assert_eq!(blueprint.context, 131_072);
        assert_eq!(bases(&blueprint), [(Some(4096), 10_000.0), (None, 1e6)]);
        let newer = br#"{"model_type":"gemma3_text","hidden_size":64,"intermediate_size":128,"vocab_size":320,
            "num_hidden_layers":6,"num_attention_heads":8,"rope_theta":7,"rope_local_base_freq":20000,
            "rope_parameters":{"full_attention":{"rope_theta":500000},"sliding_attention":{}}}"#;
        let blueprint = describe(Document::Config(newer), &TensorNames::default()).expect("a config").blueprint;
        assert_eq!(bases(&blueprint), [(Some(4096), 20_000.0), (None, 500_000.0)]);
    }

    #[test]
    fn too_many_layers_are_refused_first() {
        let raw = br#"{"model_type":"gemma3_text","hidden_size":64,"intermediate_size":128,"vocab_size":320,
            "num_hidden_layers":4398046511104,"num_attention_heads":4}"#;
        let error = describe(Document::Config(raw), &TensorNames::default()).expect_err("too many layers");
        assert!(error.to_string().contains("number of layers is 4398046511104"), "{error}");
    }
}
