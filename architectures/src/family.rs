//! Model families, and the description that a family reads from a source.

use formats::Gguf;
use formats::gguf::OwnedValue;
use serde_json::Value as Json;

use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::{self, Config};
use crate::gguf_keys::Keys;
use crate::name_tables::Table;
use crate::{Error, TensorNames};

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

/// Reads no config: the family reads only GGUF files.
pub(crate) fn gguf_only(_: Config<'_>, _: &TensorNames) -> Result<Blueprint, Error> {
    Err(config_json::fail("folders of this family cannot be run yet; its GGUF files can"))
}

/// Function that reads metadata.
pub(crate) type ReadGguf = fn(Keys<'_>, &TensorNames) -> Result<Blueprint, Error>;

impl GgufForm {
    /// Creates a form that is not written; without `read`, it is not read either.
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
