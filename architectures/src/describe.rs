//! Reading the architecture of a source: finds the family, then reads the blueprint.

use std::cell::RefCell;

use formats::Gguf;
use serde_json::{Map, Value as Json};

use crate::blueprint::Blueprint;
use crate::config_json::{self, Config};
use crate::family::{Architecture, Document, Family};
use crate::gguf_keys::{self, Keys};
use crate::keys_read::KeysRead;
use crate::unsupported::{missing_feature, unsupported};
use crate::{Error, TensorNames, heads, names};

/// Describes the architecture of a source. `names` are the names of its tensors, original or
/// canonical.
///
/// # Errors
/// [`Error::Unsupported`] if no family supports it; [`Error::Document`] if it has an invalid value.
///
/// # Examples
///
/// ```
/// use lode_architectures::{Document, TensorNames, describe};
///
/// let config = br#"{"model_type":"llama","hidden_size":8,"intermediate_size":16,
///     "num_hidden_layers":1,"num_attention_heads":2,"vocab_size":32}"#;
/// let architecture = describe(Document::Config(config), &TensorNames::default())?;
/// assert_eq!(architecture.family.name, "llama");
/// assert_eq!(architecture.blueprint.layers.len(), 1);
/// # Ok::<(), lode_architectures::Error>(())
/// ```
pub fn describe(document: Document<'_>, names: &TensorNames) -> Result<Architecture, Error> {
    let (family, source, read) = match document {
        Document::Config(raw) => {
            let (family, read, _) = by_config(raw, names)?;
            (family, config_json::SOURCE, read)
        }
        Document::Gguf(gguf) => {
            let (family, read, _) = by_gguf(gguf, names)?;
            (family, gguf_keys::SOURCE, read)
        }
    };
    let blueprint = read.check().map_err(|reason| Error::new(source, reason))?;
    Ok(Architecture { family, blueprint })
}

/// Returns the keys of a source that may change the model's output and that its family does not
/// read.
///
/// # Errors
/// The same as for [`describe`].
pub fn unread_keys(document: Document<'_>, names: &TensorNames) -> Result<Vec<String>, Error> {
    match document {
        Document::Config(raw) => by_config(raw, names).map(|(_, _, unread)| unread),
        Document::Gguf(gguf) => by_gguf(gguf, names).map(|(_, _, unread)| unread),
    }
}

/// Returns the family, the blueprint from a config, and the unread keys of the config.
fn by_config(raw: &[u8], names: &TensorNames) -> Result<(&'static Family, Blueprint, Vec<String>), Error> {
    let value: Json =
        serde_json::from_slice(&formats::json::tolerant(raw)).map_err(|e| config_json::fail(e.to_string()))?;
    let Json::Object(map) = value else { return Err(config_json::fail("it is not a JSON object")) };
    let read = KeysRead::default();
    let whole = Config::new(&map, &read);
    if let Some(name) = whole.text("model_type").filter(|name| missing_feature(name).is_some()) {
        return Err(unsupported(name));
    }
    let text = text_part(whole)?;
    let config = Config::new(text.as_ref().unwrap_or(&map), &read);
    let model_type = config.text("model_type").ok_or_else(|| config_json::fail("`model_type` is missing"))?;
    let family = Family::of_config(model_type).ok_or_else(|| unsupported(model_type))?;
    let names = names.map(names::of_folder);
    let mut blueprint = (family.read_config)(config, &names)?;
    heads::of_config(config, &names, &mut blueprint)?;
    if config.flag("is_causal")? == Some(false) {
        make_bidirectional(&mut blueprint);
    }
    Ok((family, blueprint, read.unread(family.name, config.map())))
}

/// Makes a decoder bidirectional: it embeds and does not generate. In transformers, the window of
/// such a model extends one position further on each side than the window of a causal model, which
/// includes the token's own position.
fn make_bidirectional(blueprint: &mut Blueprint) {
    (blueprint.causal, blueprint.output) = (false, None);
    for attention in blueprint.attentions_mut() {
        attention.window = attention.window.map(|window| window.saturating_add(1));
    }
}

/// Returns the config of the text part of a model with vision. Settings for all parts are copied
/// from the outer config.
fn text_part(config: Config<'_>) -> Result<Option<Map<String, Json>>, Error> {
    let Some(text) = config.object("text_config")? else { return Ok(None) };
    let mut text = text.map().clone();
    // A text part without `model_type` gets the type that the outer class implies.
    let usual = match config.text("model_type") {
        Some("gemma3") => "gemma3_text",
        Some("mistral3") => "mistral",
        Some("aya_vision") => "cohere2",
        Some("qwen2_vl" | "qwen2_5_vl") => "qwen2_vl_text",
        Some("llava" | "llava_next" | "idefics3" | "smolvlm") => "llama",
        other => other.unwrap_or_default(),
    };
    text.entry("model_type").or_insert_with(|| usual.into());
    if usual == "cohere2" {
        // The class of transformers does not scale the logits of its text part.
        text.insert("logit_scale".to_owned(), 1.0.into());
    }
    // Published text parts omit sizes that equal the defaults of the class.
    let own = text.get("model_type").and_then(Json::as_str).unwrap_or_default();
    let sizes = TEXT_SIZES.iter().find(|(name, _)| *name == own).map(|(_, sizes)| sizes);
    for (key, size) in TEXT_KEYS.iter().zip(sizes.into_iter().flatten()) {
        text.entry(*key).or_insert_with(|| (*size).into());
    }
    for key in ["tie_word_embeddings", "quantization_config", "quantization", "transformers_version"] {
        if let (Some(value), false) = (config.value(key), text.contains_key(key)) {
            text.insert(key.to_owned(), value.clone());
        }
    }
    Ok(Some(text))
}

/// Returns the family, the blueprint from GGUF metadata, and the unread keys.
fn by_gguf(gguf: &Gguf<'_>, names: &TensorNames) -> Result<(&'static Family, Blueprint, Vec<String>), Error> {
    let architecture = gguf.text("general.architecture");
    let architecture = architecture.ok_or_else(|| gguf_keys::fail("`general.architecture` is missing"))?;
    let readable = Family::of_gguf(architecture).and_then(|family| Some((family, family.gguf.read?)));
    let (family, read) = readable.ok_or_else(|| unsupported(architecture))?;
    let canonical = names.map(|name| names::canonical(architecture, name));
    let asked = RefCell::default();
    let keys = Keys { gguf, architecture, asked: &asked };
    let mut blueprint = read(keys, &canonical)?;
    heads::of_gguf(keys, &canonical, &mut blueprint)?;
    Ok((family, blueprint, keys.unread()))
}

/// Default sizes in the classes of transformers.
const TEXT_SIZES: [(&str, [u64; 5]); 5] = [
    ("llama", [4096, 32, 32, 32_000, 11_008]),
    ("mistral", [4096, 32, 32, 32_000, 14_336]),
    ("gemma3_text", [2304, 8, 26, 262_208, 9216]),
    ("qwen2", [4096, 32, 32, 151_936, 22_016]),
    ("qwen2_vl_text", [8192, 64, 80, 152_064, 29_568]),
];

/// Sizes that configs of text parts may omit.
const TEXT_KEYS: [&str; 5] =
    ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "intermediate_size"];

#[cfg(test)]
mod tests {
    use super::*;

    /// The configs of Gemma 3 4B and `LLaVA` 1.5 7B as published.
    #[test]
    fn text_parts_leave_out_what_their_class_has() {
        let gemma = r#"{"model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
            "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024}}"#;
        let llava = r#"{"model_type": "llava", "text_config": {"max_position_embeddings": 4096, "model_type": "llama",
            "rms_norm_eps": 1e-05, "vocab_size": 32064}}"#;
        for (raw, family, sizes) in
            [(gemma, "gemma3", [2560, 34, 262_208, 8, 256]), (llava, "llama", [4096, 32, 32_064, 32, 128])]
        {
            let found = describe(Document::Config(raw.as_bytes()), &TensorNames::default()).expect("it is read");
            let (own, heads) = (&found.blueprint, found.blueprint.attentions().next().expect("a layer"));
            let found_sizes = [own.hidden, own.layers.len() as u64, own.vocabulary, heads.heads, heads.head_dim];
            assert_eq!((found.family.name, found_sizes), (family, sizes));
        }
        let seeing = r#"{"model_type": "paligemma", "text_config": {"model_type": "gemma"}}"#;
        let error = describe(Document::Config(seeing.as_bytes()), &TensorNames::default()).expect_err("it sees");
        assert!(error.to_string().contains("`paligemma` cannot be run yet: it needs"), "{error}");
    }
}
