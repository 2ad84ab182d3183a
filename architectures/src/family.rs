//! Model families, and the description that a family reads from a source.

use std::cell::RefCell;

use formats::Gguf;
use formats::gguf::OwnedValue;
use serde_json::{Map, Value as Json};

use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::{self, Config};
use crate::gguf_keys::{self, Keys};
use crate::keys_read::KeysRead;
use crate::names::{self, Table};
use crate::{Error, TensorNames, families, heads};

/// Family of models: readers of its sources, and its names in other formats. Each family has a file
/// in `families/`.
#[derive(Debug)]
pub struct Family {
    /// Name that users see.
    pub name: &'static str,
    /// Values of `model_type` in configs of this family.
    pub(crate) model_types: &'static [&'static str],
    /// Reads a `config.json`; the second argument is the canonical names of the model's tensors.
    pub(crate) read_config: fn(Config<'_>, &TensorNames) -> Result<Blueprint, Error>,
    /// Form in GGUF files. Several families may share a form; the first of them reads the files.
    pub gguf: &'static GgufForm,
    /// Form in Hugging Face folders.
    pub hugging_face: HuggingFaceForm,
}

/// Form of a family in GGUF files.
#[derive(Debug)]
pub struct GgufForm {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Other names of the architecture, which other programs write.
    pub(crate) also: &'static [Alias],
    /// Reads the metadata; the second argument is the canonical names of the model's tensors.
    /// `None`: files of this architecture are not supported yet.
    pub(crate) read: Option<ReadGguf>,
    /// Names of layers' tensors that differ from the usual ones.
    pub(crate) names: Table,
    /// Names of other tensors that differ from the usual ones.
    pub(crate) model_names: Table,
    /// Order of the rows of q and k.
    pub layout: HeadLayout,
    /// Scale of attention scores if no key states it; `None` if a key does.
    pub(crate) attention_scale: Option<fn(&Blueprint) -> f64>,
    /// Returns keys in addition to the keys of all families.
    pub(crate) keys: fn(&Blueprint) -> Result<Vec<Key>, String>,
}

/// Other name of an architecture, with the differences of its files.
#[derive(Debug)]
pub(crate) struct Alias {
    /// `general.architecture`, which is also the prefix of the keys.
    pub(crate) architecture: &'static str,
    /// Names of layers' tensors that differ from the form's names.
    pub(crate) names: Table,
}

impl Alias {
    /// Creates an alias that differs in its name only.
    pub(crate) const fn of(architecture: &'static str) -> Self {
        Self { architecture, names: &[] }
    }
}

/// Function that reads metadata.
pub(crate) type ReadGguf = fn(Keys<'_>, &TensorNames) -> Result<Blueprint, Error>;

impl GgufForm {
    /// Creates the form of a family whose files can neither be read nor written yet.
    pub(crate) const fn not_yet(architecture: &'static str) -> Self {
        Self {
            architecture,
            also: &[],
            read: None,
            names: &[],
            model_names: &[],
            layout: HeadLayout::Half,
            attention_scale: None,
            keys: |_| {
                Err("models of this family cannot be written as GGUF files yet; export the model in its original format".to_owned())
            },
        }
    }
}

impl HuggingFaceForm {
    /// Creates the form of a family that is only imported from folders: no other format is
    /// converted to it.
    pub(crate) const fn of(class: &'static str, model_type: &'static str) -> Self {
        Self {
            class,
            model_type,
            is_written: false,
            activation_key: "hidden_act",
            norm_offset: 0.0,
            layout: HeadLayout::Half,
            fields: |_, _| Vec::new(),
        }
    }

    /// Returns the same form with interleaved `RoPE` pairs.
    pub(crate) const fn interleaved(self) -> Self {
        Self { layout: HeadLayout::Interleaved, ..self }
    }
}

/// Key without the prefix of the architecture's name, and its value.
pub(crate) type Key = (&'static str, OwnedValue);

/// Form of a family in Hugging Face folders.
#[derive(Debug)]
pub struct HuggingFaceForm {
    /// `architectures` in the config.
    pub class: &'static str,
    /// `model_type` in the config.
    pub model_type: &'static str,
    /// Whether models of other forms can be written as such a folder.
    pub is_written: bool,
    /// Key of the activation in the config.
    pub activation_key: &'static str,
    /// Constant that the class adds to the weights of norms.
    pub(crate) norm_offset: f64,
    /// Order of the rows of q and k.
    pub layout: HeadLayout,
    /// Returns fields of the config that not all families have. The second argument returns whether
    /// there is a tensor whose canonical name has the given ending.
    pub fields: Fields,
}

/// Function that returns fields of a config.
pub type Fields = fn(&Blueprint, &dyn Fn(&str) -> bool) -> Vec<(&'static str, Json)>;

/// Description of a model in its source.
#[derive(Clone, Copy, Debug)]
pub enum Document<'a> {
    /// `config.json`.
    Config(&'a [u8]),
    /// Header of a GGUF file; the first header of a split.
    Gguf(&'a Gguf<'a>),
}

/// Architecture of a model: its family and its blueprint.
#[derive(Clone, Debug)]
pub struct Architecture {
    /// Family that read the source.
    pub family: &'static Family,
    /// Blueprint of the decoder.
    pub blueprint: Blueprint,
}

/// Number under a GGUF key without the prefix of the architecture's name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fact {
    /// A size or a count.
    Unsigned(u64),
    /// Any other number.
    Float(f64),
}

impl Family {
    /// All families, in the order in which they are tried.
    pub const ALL: &'static [&'static Self] = families::ALL;

    /// Returns the family with this user-visible name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().copied().find(|family| family.name == name)
    }

    /// Returns the family that reads GGUF files of this architecture.
    pub fn of_gguf(architecture: &str) -> Option<&'static Self> {
        let is_called = |family: &&Self| {
            let mut also = family.gguf.also.iter();
            family.gguf.architecture == architecture || also.any(|alias| alias.architecture == architecture)
        };
        Self::ALL.iter().copied().filter(is_called).find(|family| family.gguf.read.is_some())
    }

    fn of_config(model_type: &str) -> Option<&'static Self> {
        Self::ALL.iter().copied().find(|family| family.model_types.contains(&model_type))
    }

    pub(crate) fn unknown(name: &str) -> Error {
        let supported: Vec<&str> = Self::ALL.iter().map(|family| family.name).collect();
        let lacks = families::LACKING.iter().find(|(own, _)| *own == name);
        let lacks = lacks.map(|(_, what)| format!(" (it needs {what})")).unwrap_or_default();
        Error::Unknown { name: name.chars().take(60).collect(), lacks, supported: supported.join(", ") }
    }
}

/// Describes the architecture of a source. `names` are the names of its tensors, original or
/// canonical.
///
/// # Errors
/// [`Error::Unknown`] if no family supports it; [`Error::Document`] if it has an invalid value.
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
    if let Some(lacking) = whole.text("model_type").filter(|name| families::LACKING.iter().any(|(own, _)| own == name))
    {
        return Err(Family::unknown(lacking));
    }
    let text = text_part(whole)?;
    let config = Config::new(text.as_ref().unwrap_or(&map), &read);
    let model_type = config.text("model_type").ok_or_else(|| config_json::fail("`model_type` is missing"))?;
    let family = Family::of_config(model_type).ok_or_else(|| Family::unknown(model_type))?;
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

/// Sizes that configs of text parts may omit.
const TEXT_KEYS: [&str; 5] =
    ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "intermediate_size"];
/// Default sizes in the classes of transformers.
const TEXT_SIZES: [(&str, [u64; 5]); 4] = [
    ("llama", [4096, 32, 32, 32_000, 11_008]),
    ("mistral", [4096, 32, 32, 32_000, 14_336]),
    ("gemma3_text", [2304, 8, 26, 262_208, 9216]),
    ("qwen2", [4096, 32, 32, 151_936, 22_016]),
];

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
        Some("qwen2_vl" | "qwen2_5_vl") => "qwen2",
        Some("llava" | "llava_next" | "idefics3" | "smolvlm") => "llama",
        other => other.unwrap_or_default(),
    };
    text.entry("model_type").or_insert_with(|| usual.into());
    // Published text parts omit sizes that equal the defaults of the class.
    let own = text.get("model_type").and_then(Json::as_str).unwrap_or_default();
    let sizes = TEXT_SIZES.iter().find(|(name, _)| *name == own).map(|(_, sizes)| sizes);
    for (key, size) in TEXT_KEYS.iter().zip(sizes.into_iter().flatten()) {
        text.entry(*key).or_insert_with(|| (*size).into());
    }
    for key in ["tie_word_embeddings", "quantization_config"] {
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
    let (family, read) = readable.ok_or_else(|| Family::unknown(architecture))?;
    let canonical = names.map(|name| names::canonical(architecture, name));
    let asked = RefCell::default();
    let keys = Keys { gguf, architecture, asked: &asked };
    let mut blueprint = read(keys, &canonical)?;
    heads::of_gguf(keys, &canonical, &mut blueprint)?;
    Ok((family, blueprint, keys.unread()))
}

impl Architecture {
    /// Returns the numbers that every family has, under GGUF's keys and in the order in which
    /// llama.cpp's converter writes them. If layers differ, the largest value is used.
    pub fn facts(&self) -> Vec<(&'static str, Fact)> {
        let blueprint = &self.blueprint;
        let most = |of: fn(&crate::Attention) -> u64| blueprint.attentions().map(of).max().unwrap_or(0);
        let head_dim = most(|attention| attention.head_dim);
        let rotates =
            |attention: &crate::Attention| attention.rope.as_ref().map(|rope| rope.rotated(attention.head_dim));
        let rotated = blueprint.attentions().filter_map(rotates).max().unwrap_or(head_dim);
        let mut facts = vec![
            ("block_count", Fact::Unsigned(blueprint.layers.len() as u64)),
            ("context_length", Fact::Unsigned(blueprint.context)),
            ("embedding_length", Fact::Unsigned(blueprint.hidden)),
            ("feed_forward_length", Fact::Unsigned(blueprint.gated().map(|gated| gated.width).max().unwrap_or(0))),
            ("attention.head_count", Fact::Unsigned(most(|attention| attention.heads))),
            ("attention.head_count_kv", Fact::Unsigned(most(|attention| attention.kv_heads))),
            ("attention.key_length", Fact::Unsigned(head_dim)),
            ("attention.value_length", Fact::Unsigned(most(|attention| attention.value_dim))),
            ("rope.dimension_count", Fact::Unsigned(rotated)),
            ("vocab_size", Fact::Unsigned(blueprint.vocabulary)),
        ];
        // The base is that of layers with full attention; sliding layers may have another one.
        let ropes =
            || blueprint.attentions().filter_map(|attention| Some((attention.window, attention.rope.as_ref()?)));
        let rope = ropes().find(|(window, _)| window.is_none()).or_else(|| ropes().next());
        if let Some((_, rope)) = rope {
            facts.push(("rope.freq_base", Fact::Float(rope.theta)));
        }
        facts.push(("attention.layer_norm_rms_epsilon", Fact::Float(blueprint.epsilon())));
        if let Some(window) = blueprint.attentions().filter_map(|attention| attention.window).max() {
            facts.push(("attention.sliding_window", Fact::Unsigned(window)));
        }
        facts
    }
}

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
        assert!(error.to_string().contains("`paligemma` cannot be run yet (it needs"), "{error}");
    }
}
