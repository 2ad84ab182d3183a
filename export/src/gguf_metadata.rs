//! Converts the documents of a Hugging Face folder to GGUF metadata: the keys that llama.cpp's
//! `convert_hf_to_gguf.py` writes.
//!
//! ```text
//! Architecture ─────▶ keys ────────────┐
//! tokenizer.json ───▶ tokenizer ───────┼──▶ GgufMetadata
//! the other documents ▶ special tokens ┘
//! ```
//!
//! Pure: the input is the bytes of documents, the output is keys in the converter's order. A fact
//! that the file cannot express is either an error or a loss; the caller decides whether losses are
//! acceptable.

mod keys;
mod sentencepiece;
mod special;
mod token_list;
mod tokenizer;
mod tokenizer_json;

use architectures::{Architecture, RopeScaling};
use formats::GgmlType;
use formats::gguf::OwnedValue;
use import::Error;
use serde_json::Value as Json;
use vocabulary::chat_templates;

use super::refused;

/// Model as a Hugging Face folder describes it.
#[derive(Clone, Copy, Debug)]
pub struct HuggingFaceModel<'a> {
    /// Architecture of the model, read from `config.json` or from another GGUF file.
    pub architecture: &'a Architecture,
    /// `general.name`.
    pub name: &'a str,
    /// Type that most matrices of the file will have; `None` if unknown.
    pub kind: Option<GgmlType>,
    /// `config.json`.
    pub config: &'a [u8],
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `generation_config.json`.
    pub generation_config: Option<&'a [u8]>,
    /// Chat templates of the folder with their names.
    pub chat_templates: &'a [chat_templates::NamedTemplate],
}

/// Metadata that precedes the tensors of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufMetadata {
    /// Keys in the converter's order.
    pub keys: Vec<(String, OwnedValue)>,
    /// Tensors that the folder does not have. They are written before its own tensors.
    pub extra_tensors: Vec<ExtraTensor>,
    /// Facts that the file does not express, one sentence each; empty if nothing is lost.
    pub losses: Vec<String>,
}

/// A float32 tensor that is computed from the blueprint.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtraTensor {
    /// Name in the file.
    pub name: String,
    /// Dimensions, innermost first.
    pub dims: Vec<u64>,
    /// Values of the tensor.
    pub numbers: Vec<f32>,
}

/// Builds the metadata of a GGUF file.
///
/// # Errors
/// A document cannot be parsed, GGUF has no model for the kind of tokenizer, or a reader of the
/// file would compute with different numbers.
pub fn gguf_metadata(model: &HuggingFaceModel<'_>) -> Result<GgufMetadata, Error> {
    let documents = special::Documents {
        config: json("config.json", model.config)?,
        tokenizer_config: optional("tokenizer_config.json", model.tokenizer_config)?,
        generation_config: optional("generation_config.json", model.generation_config)?,
        chat_templates: model.chat_templates,
    };
    let tokenizer = tokenizer_json::TokenizerJson::new(json("tokenizer.json", model.tokenizer)?)?;
    let mut losses = Vec::new();
    let vocabulary = tokenizer::vocabulary(&tokenizer, model.architecture.blueprint.vocabulary, &mut losses)?;
    let special = special::read(&documents, &tokenizer, &vocabulary, &mut losses);
    let mut keys = keys::keys(model)?;
    keys.extend(vocabulary.keys());
    keys.extend(special);
    keys.push(("general.quantization_version".to_owned(), OwnedValue::from(2u32)));
    Ok(GgufMetadata { keys, extra_tensors: extra_tensors(model.architecture), losses })
}

/// Returns `rope_freqs.weight` for Llama 3's `RoPE` scaling. The file stores the scaling as
/// divisors of the unscaled frequencies.
fn extra_tensors(architecture: &Architecture) -> Vec<ExtraTensor> {
    let stretched = architecture.blueprint.attentions().find_map(|attention| {
        let rope = attention.rope.as_ref()?;
        matches!(rope.scaling, RopeScaling::Llama3 { .. }).then_some((rope, attention.head_dim))
    });
    let Some((rope, head_dim)) = stretched else { return Vec::new() };
    let plain = rope.scaled(RopeScaling::None, 1.0).frequencies(head_dim, false);
    let pairs = plain.into_iter().zip(rope.frequencies(head_dim, false));
    let numbers: Vec<f32> = pairs.map(|(plain, stretched)| (plain / stretched) as f32).collect();
    vec![ExtraTensor { name: "rope_freqs.weight".to_owned(), dims: vec![numbers.len() as u64], numbers }]
}

fn json(name: &str, raw: &[u8]) -> Result<Json, Error> {
    serde_json::from_slice(&formats::json::tolerant(raw)).map_err(|e| refused(name, format!("it is not JSON: {e}")))
}

fn optional(name: &str, raw: Option<&[u8]>) -> Result<Json, Error> {
    raw.map_or(Ok(Json::Null), |raw| json(name, raw))
}
