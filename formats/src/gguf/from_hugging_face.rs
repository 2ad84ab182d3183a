//! From a Hugging Face folder's documents to GGUF metadata: the keys that llama.cpp's `convert_hf_to_gguf.py` writes.
//!
//! ```text
//! HyperParameters ──▶ keys ────────────┐
//! tokenizer.json ───▶ tokenizer ───────┼──▶ GgufMetadata
//! the other documents ▶ special tokens ┘
//! ```
//!
//! Pure: documents come in as bytes, keys go out in the converter's order. What a file cannot say is either an error or
//! a loss; the caller decides whether losses are acceptable.

mod keys;
mod sentencepiece;
mod special;
mod tokenizer;
mod tokenizer_json;

pub use keys::file_type;
use serde_json::Value as Json;

use super::OwnedValue;
use crate::hyper::RopeScaling;
use crate::{Error, GgmlType, HyperParameters};

/// A model as a Hugging Face folder has it.
#[derive(Clone, Copy, Debug)]
pub struct HuggingFaceModel<'a> {
    /// The numbers; whether from `config.json` or from another GGUF file.
    pub hyper: &'a HyperParameters,
    /// `general.name`.
    pub name: &'a str,
    /// What most matrices will be in the file; nothing where it is not known.
    pub kind: Option<GgmlType>,
    /// `config.json`.
    pub config: &'a [u8],
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `generation_config.json`.
    pub generation_config: Option<&'a [u8]>,
    /// `chat_template.jinja`; it counts more than a template in `tokenizer_config.json`.
    pub chat_template: Option<&'a [u8]>,
}

/// What comes before the tensors of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufMetadata {
    /// Keys in the converter's order.
    pub keys: Vec<(String, OwnedValue)>,
    /// Tensors that the folder has not, to be written before its own.
    pub extra_tensors: Vec<ExtraTensor>,
    /// What the file will not say, a sentence each; empty where nothing is lost.
    pub losses: Vec<String>,
}

/// A float32 tensor that is computed from the hyper-parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtraTensor {
    /// Its name in the file.
    pub name: String,
    /// Its dimensions, innermost first.
    pub dims: Vec<u64>,
    /// Its numbers.
    pub numbers: Vec<f32>,
}

/// Makes the metadata of a GGUF file.
///
/// # Errors
/// A document that cannot be read, a tokenizer of a kind that GGUF has no model for, hyper-parameters that would be
/// computed with differently.
pub fn from_hugging_face(model: &HuggingFaceModel<'_>) -> Result<GgufMetadata, Error> {
    let documents = special::Documents {
        config: json("config.json", model.config)?,
        tokenizer_config: optional("tokenizer_config.json", model.tokenizer_config)?,
        generation_config: optional("generation_config.json", model.generation_config)?,
        chat_template: model.chat_template,
    };
    let tokenizer = tokenizer_json::TokenizerJson::new(json("tokenizer.json", model.tokenizer)?)?;
    let mut losses = Vec::new();
    let vocabulary = tokenizer::vocabulary(&tokenizer, model.hyper.vocabulary, &mut losses)?;
    let special = special::read(&documents, &tokenizer, &vocabulary, &mut losses)?;
    let mut keys = keys::keys(model)?;
    keys.extend(vocabulary.keys());
    keys.extend(special);
    keys.push(("general.quantization_version".to_owned(), OwnedValue::from(2u32)));
    Ok(GgufMetadata { keys, extra_tensors: extra_tensors(model.hyper), losses })
}

/// Llama 3's stretching of frequencies is in a file as the divisors of the plain ones.
fn extra_tensors(hyper: &HyperParameters) -> Vec<ExtraTensor> {
    let rope = hyper.rope;
    if !matches!(rope.scaling, RopeScaling::Llama3 { .. }) {
        return Vec::new();
    }
    let plain = crate::hyper::Rope { scaling: RopeScaling::None, ..rope };
    let pairs = plain.frequencies(hyper.head_dim).into_iter().zip(rope.frequencies(hyper.head_dim));
    let numbers: Vec<f32> = pairs.map(|(plain, stretched)| (plain / stretched) as f32).collect();
    vec![ExtraTensor { name: "rope_freqs.weight".to_owned(), dims: vec![numbers.len() as u64], numbers }]
}

fn json(name: &'static str, raw: &[u8]) -> Result<Json, Error> {
    serde_json::from_slice(raw).map_err(|e| Error::Config { source_name: name, reason: format!("it is not JSON: {e}") })
}

fn optional(name: &'static str, raw: Option<&[u8]>) -> Result<Json, Error> {
    raw.map_or(Ok(Json::Null), |raw| json(name, raw))
}
