//! From GGUF metadata to the documents of a Hugging Face folder.
//!
//! ```text
//! hyper-parameters ──▶ config.json
//! tokenizer.ggml.* ──▶ tokenizer.json, tokenizer_config.json, special_tokens_map.json, generation_config.json
//! ```
//!
//! Pure: a header that was read comes in, documents go out. What a folder cannot say is told as a loss; a tokenizer that
//! cannot be made is left out, which is a loss too.

mod bpe;
mod config;
mod rope;
mod sentencepiece;
mod special;
mod tokenizer;
mod vocabulary;

use serde_json::Value as Json;

use super::Gguf;
use crate::{Dtype, Error, HyperParameters};

/// A model as a GGUF file has it.
#[derive(Clone, Copy, Debug)]
pub struct GgufModel<'a> {
    /// The header.
    pub gguf: &'a Gguf<'a>,
    /// The numbers that were read from it.
    pub hyper: &'a HyperParameters,
    /// What most weights of the folder will be.
    pub dtype: Dtype,
    /// The numbers of `rope_freqs.weight`, where the file has that tensor.
    pub rope_divisors: Option<&'a [f32]>,
}

/// Documents of a Hugging Face folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HuggingFaceFiles {
    /// Names and contents.
    pub files: Vec<(String, Vec<u8>)>,
    /// What the folder will not say, a sentence each; empty where nothing is lost.
    pub losses: Vec<String>,
}

/// Makes the documents of a Hugging Face folder.
///
/// # Errors
/// A vocabulary that contradicts itself, divisors of `RoPE` that no scaling of a config gives.
pub fn to_hugging_face(model: &GgufModel<'_>) -> Result<HuggingFaceFiles, Error> {
    let mut losses = Vec::new();
    let vocabulary = vocabulary::Vocabulary::read(model.gguf)?;
    let special = special::Special::read(model.gguf, vocabulary.as_ref());
    let config = config::config(model, &special, &mut losses)?;
    let mut files = vec![("config.json".to_owned(), pretty(&config))];
    files.push(("generation_config.json".to_owned(), pretty(&special.generation_config())));
    match vocabulary {
        Some(vocabulary) => {
            if let Some(json) = tokenizer::tokenizer(&vocabulary, &special, &mut losses)? {
                // Compact: there may be half a million pairs in it.
                files.push(("tokenizer.json".to_owned(), json.to_string().into_bytes()));
            }
            let config = special.tokenizer_config(model.gguf, &vocabulary, model.hyper.context);
            files.push(("tokenizer_config.json".to_owned(), pretty(&config)));
            files.push(("special_tokens_map.json".to_owned(), pretty(&special.map(&vocabulary))));
        }
        None => losses.push("the file has no vocabulary, the folder will have no tokenizer".to_owned()),
    }
    Ok(HuggingFaceFiles { files, losses })
}

fn pretty(json: &Json) -> Vec<u8> {
    format!("{json:#}\n").into_bytes()
}

fn fail(reason: impl Into<String>) -> Error {
    Error::Config { source_name: "GGUF metadata", reason: reason.into() }
}
