//! Converts GGUF metadata to the documents of a Hugging Face folder.
//!
//! ```text
//! Architecture ──────▶ config.json
//! tokenizer.ggml.* ──▶ tokenizer.json, tokenizer_config.json,
//!                      special_tokens_map.json, generation_config.json
//! ```
//!
//! Pure: the input is a parsed header, the output is documents. Facts that a folder cannot express
//! are reported as losses. A tokenizer that cannot be written is omitted, which is a loss too.

mod bpe;
mod config;
mod config_losses;
mod rope;
mod sentencepiece;
mod special;
mod tokenizer;
mod tokenizer_parts;

use architectures::Architecture;
use formats::{Dtype, Gguf};
use import::Error;
use serde_json::Value as Json;
use vocabulary::Vocabulary;

use super::refused;

/// Model as a GGUF file describes it.
#[derive(Clone, Copy, Debug)]
pub struct GgufModel<'a> {
    /// Header of the file.
    pub gguf: &'a Gguf<'a>,
    /// Architecture that the header describes.
    pub architecture: &'a Architecture,
    /// Type that most weights of the folder will have.
    pub dtype: Dtype,
    /// Values of `rope_freqs.weight`, if the file has that tensor.
    pub rope_divisors: Option<&'a [f32]>,
}

/// Documents of a Hugging Face folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HuggingFaceFiles {
    /// File names and contents.
    pub files: Vec<(String, Vec<u8>)>,
    /// Facts that the folder does not express, one sentence each; empty if nothing is lost.
    pub losses: Vec<String>,
}

/// Converts a model's metadata to the documents of a Hugging Face folder.
///
/// # Errors
/// The vocabulary contradicts itself, or no `RoPE` scaling of a config gives the `RoPE` divisors.
pub fn folder_documents(model: &GgufModel<'_>) -> Result<HuggingFaceFiles, Error> {
    let (family, blueprint) = (model.architecture.family, &model.architecture.blueprint);
    let which = if !family.hugging_face.is_written {
        Some("")
    } else if blueprint.gated().count() != blueprint.layers.len() {
        Some(" with experts")
    } else if !blueprint.causal {
        Some(" that only embed")
    } else {
        None
    };
    if let Some(which) = which {
        let name = family.name;
        return Err(fail(format!(
            "models of the family {name}{which} cannot be written as a folder yet; export it as GGUF"
        )));
    }
    let mut losses = Vec::new();
    let vocabulary = vocabulary(model.gguf)?;
    let config = config::config(model, vocabulary.as_ref(), &mut losses)?;
    config_losses::note(model, &config, &mut losses)?;
    let architecture = model.gguf.text("general.architecture").unwrap_or_default();
    if model.gguf.unsigned(&format!("{architecture}.pooling_type")).is_some_and(|kind| kind > 0) {
        losses.push("the folder will not say how hidden states are pooled for an embedding".to_owned());
    }
    let mut files = vec![("config.json".to_owned(), pretty(&config))];
    files.push(("generation_config.json".to_owned(), pretty(&special::generation_config(vocabulary.as_ref()))));
    match vocabulary {
        Some(vocabulary) => {
            if let Some(json) = tokenizer::tokenizer(&vocabulary, &mut losses)? {
                // Compact, because it can contain half a million merges.
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

/// Reads the vocabulary of the file. A vocabulary that is not UTF-8 is an error, because JSON
/// cannot express it.
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

#[cfg(test)]
mod tests {
    use architectures::{Document, describe};
    use formats::gguf::{OwnedValue, write_header};

    use super::*;

    #[test]
    fn models_that_only_embed_are_refused() {
        let number = |key: &str, number: u32| (format!("gemma3.{key}"), OwnedValue::from(number));
        let keys = |pooling: Option<u32>| {
            let mut keys = vec![("general.architecture".to_owned(), OwnedValue::from("gemma3"))];
            let sizes = ["block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"];
            keys.extend(sizes.map(|key| number(key, 64)));
            keys.push(number("attention.head_count", 4));
            keys.extend(pooling.map(|kind| number("pooling_type", kind)));
            keys
        };
        for (pooling, is_written) in [(None, true), (Some(1), false)] {
            let header = write_header(&keys(pooling), &[]).expect("a header");
            let gguf = Gguf::parse_header(&header.bytes).expect("it is read");
            let architecture = describe(Document::Gguf(&gguf), &[].into_iter().collect()).expect("it is described");
            let model = GgufModel { gguf: &gguf, architecture: &architecture, dtype: Dtype::Bf16, rope_divisors: None };
            match folder_documents(&model) {
                Ok(_) => assert!(is_written),
                Err(error) => assert!(!is_written && error.to_string().contains("gemma3 that only embed"), "{error}"),
            }
        }
    }
}
