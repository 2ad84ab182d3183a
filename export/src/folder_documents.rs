//! From GGUF metadata to the documents of a Hugging Face folder.
//!
//! ```text
//! Architecture ──────▶ config.json
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
mod unsaid;

use architectures::Architecture;
use formats::{Dtype, Gguf};
use import::Error;
use serde_json::Value as Json;
use vocabulary::Vocabulary;

use super::refused;

/// A model as a GGUF file has it.
#[derive(Clone, Copy, Debug)]
pub struct GgufModel<'a> {
    /// The header.
    pub gguf: &'a Gguf<'a>,
    /// What it computes, as the header says.
    pub architecture: &'a Architecture,
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
pub fn folder_documents(model: &GgufModel<'_>) -> Result<HuggingFaceFiles, Error> {
    let (family, blueprint) = (model.architecture.family, &model.architecture.blueprint);
    if !family.hugging_face.is_written || blueprint.gated().count() != blueprint.layers.len() {
        let which = if family.hugging_face.is_written { " with experts" } else { "" };
        let name = family.name;
        return Err(fail(format!(
            "models of the family {name}{which} cannot be written as a folder yet; export it as GGUF"
        )));
    }
    let mut losses = Vec::new();
    let vocabulary = vocabulary(model.gguf)?;
    let config = config::config(model, vocabulary.as_ref(), &mut losses)?;
    unsaid::note(model, &config, &mut losses)?;
    let mut files = vec![("config.json".to_owned(), pretty(&config))];
    files.push(("generation_config.json".to_owned(), pretty(&special::generation_config(vocabulary.as_ref()))));
    match vocabulary {
        Some(vocabulary) => {
            if let Some(json) = tokenizer::tokenizer(&vocabulary, &mut losses)? {
                // Compact: there may be half a million pairs in it.
                files.push(("tokenizer.json".to_owned(), json.to_string().into_bytes()));
            }
            let config = special::tokenizer_config(model.gguf, &vocabulary, model.architecture.blueprint.context);
            files.push(("tokenizer_config.json".to_owned(), pretty(&config)));
            files.push(("special_tokens_map.json".to_owned(), pretty(&special::map(&vocabulary))));
        }
        None => losses.push("the file has no vocabulary, the folder will have no tokenizer".to_owned()),
    }
    Ok(HuggingFaceFiles { files, losses })
}

fn pretty(json: &Json) -> Vec<u8> {
    format!("{json:#}\n").into_bytes()
}

/// The vocabulary of the file, where it can be said in JSON.
fn vocabulary(gguf: &Gguf<'_>) -> Result<Option<Vocabulary>, Error> {
    let vocabulary = Vocabulary::read(gguf).map_err(|e| Error::Source(e.to_string()))?;
    match vocabulary.as_ref().and_then(|vocabulary| vocabulary.not_utf8.as_ref()) {
        Some(what) => Err(fail(format!("{what} is not UTF-8; JSON cannot have it"))),
        None => Ok(vocabulary),
    }
}

fn fail(reason: impl std::fmt::Display) -> Error {
    refused("GGUF metadata", reason)
}
