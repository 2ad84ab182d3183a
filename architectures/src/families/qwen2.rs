//! Qwen 2 and 2.5: biases on q, k and v. Layers from some index on may slide; published models do
//! not use that.

use serde_json::{Value as Json, json};

use super::llama;
use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, layer_types};
use crate::family::{Alias, Family, GgufForm, HuggingFaceForm, Key};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "qwen2",
    model_types: &["qwen2", "qwen2_5_omni_text", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"],
    read_config,
    gguf: &GgufForm {
        architecture: "qwen2",
        // Names of the text part of vision models, by llama.cpp and Ollama.
        also: &[Alias::of("qwen2vl"), Alias::of("qwen25vl")],
        read: Some(read_gguf),
        names: name_tables::PRE_NORMS,
        model_names: &[],
        layout: HeadLayout::Half,
        attention_scale: Some(llama::by_head_size),
        keys,
    },
    hugging_face: HuggingFaceForm {
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        is_written: true,
        activation_key: "hidden_act",
        norm_offset: 0.0,
        layout: HeadLayout::Half,
        fields: windows,
    },
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(32), head_dim: None, context: 32_768, theta: 10_000.0 };

/// Numbers that classes of text parts have for missing keys.
const OMNI: &[(&str, f64)] = &[("rope_theta", 1_000_000.0)];
const VISION: &[(&str, f64)] = &[("rope_theta", 1_000_000.0), ("num_key_value_heads", 8.0), ("rms_norm_eps", 1e-5)];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = match config.text("model_type") {
        Some("qwen2_5_omni_text") => config.with_defaults(OMNI),
        Some("qwen2_vl" | "qwen2_vl_text" | "qwen2_5_vl" | "qwen2_5_vl_text") => config.with_defaults(VISION),
        _ => config,
    };
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    slide(&mut dense, config)?;
    Ok(dense.blueprint(names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(Dense::from_gguf(keys)?.blueprint(names))
}

/// Returns Llama's keys, after checking that no tensor scales frequencies: readers do not support
/// that here.
pub(super) fn keys(blueprint: &Blueprint) -> Result<Vec<Key>, String> {
    llama::only_usual_frequencies(blueprint)?;
    llama::no_keys(blueprint)
}

/// Sets the window, if `use_sliding_window` enables it: for the layers that `layer_types` names, or
/// without that list, from layer `max_window_layers` on.
pub(super) fn slide(dense: &mut Dense, config: Config<'_>) -> Result<(), Error> {
    let layers = dense.layers.len() as u64;
    let used = config.flag("use_sliding_window")?.unwrap_or(false) && !config.is_null("sliding_window");
    let slides = config.sliding_layers(layers)?;
    if !used {
        return Ok(());
    }
    let window = config.unsigned("sliding_window")?.unwrap_or(4096);
    if window == 0 {
        return Err(fail("`sliding_window` is 0, expected a number of tokens"));
    }
    let first = config.unsigned("max_window_layers")?.unwrap_or(28);
    let slides = slides.unwrap_or_else(|| (0..layers).map(|layer| layer >= first).collect());
    dense.slide(&slides, window);
    Ok(())
}

/// Returns the fields that state which layers slide.
pub(super) fn windows(blueprint: &Blueprint, _: &dyn Fn(&str) -> bool) -> Vec<(&'static str, Json)> {
    let window = blueprint.attentions().find_map(|attention| attention.window);
    vec![
        ("layer_types", json!(layer_types(blueprint))),
        ("sliding_window", json!(window)),
        ("use_sliding_window", window.is_some().into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, describe};

    #[test]
    fn windows_count_where_they_are_used() {
        let windows = |extra: &str| {
            let raw = format!(
                r#"{{"model_type":"qwen2","hidden_size":64,"intermediate_size":128,"num_hidden_layers":3,
                "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":320,"max_position_embeddings":256{extra}}}"#
            );
            let blueprint =
                describe(Document::Config(raw.as_bytes()), &TensorNames::default()).expect("a config").blueprint;
            blueprint.attentions().map(|attention| attention.window).collect::<Vec<_>>()
        };
        let first = r#","sliding_window":16,"max_window_layers":2"#;
        assert_eq!(windows(first), [None; 3]);
        assert_eq!(windows(&format!(r#"{first},"use_sliding_window":true"#)), [None, None, Some(16)]);
        let types = r#","layer_types":["sliding_attention","full_attention","full_attention"]"#;
        assert_eq!(windows(&format!(r#"{first}{types},"use_sliding_window":true"#)), [Some(16), None, None]);
        assert_eq!(windows(&format!("{first}{types}")), [None; 3]);
    }
}
