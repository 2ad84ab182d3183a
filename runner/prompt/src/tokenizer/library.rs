//! Tokenizers of the `tokenizers` library, with our BPE model for vocabularies in a token table.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::{
    AddedToken, DecoderWrapper, Model, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Result, Token,
    TokenizerImpl,
};
use vocabulary::TokenTable;

use super::bpe::{Bpe, Rules};
use crate::Error;

/// A tokenizer of the library.
pub(super) type Library =
    TokenizerImpl<AnyModel, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// Reads a `tokenizer.json` whose model is the library's own.
pub(super) fn read(raw: &[u8]) -> std::result::Result<Library, Error> {
    let mut tokenizer: Library =
        serde_json::from_slice(raw.strip_prefix(b"\xef\xbb\xbf").unwrap_or(raw)).map_err(Error::tokenizer)?;
    // Some files enable truncation or padding for training, which prompts must not have.
    tokenizer.with_truncation(None).map_err(Error::tokenizer)?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

/// The fields of a `tokenizer.json`, except for truncation and padding.
#[derive(Deserialize)]
struct TokenizerFields {
    version: Option<String>,
    /// As in the library, their ids are those of the vocabulary, or follow it in this order.
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    decoder: Option<DecoderWrapper>,
    model: Rules,
}

/// Creates the tokenizer of a `tokenizer.json` whose vocabulary and merges are in a table.
pub(super) fn over(table: TokenTable, document: &str) -> std::result::Result<Library, Error> {
    let document: TokenizerFields = serde_json::from_str(document).map_err(Error::tokenizer)?;
    if let Some(version) = document.version.filter(|version| version != "1.0") {
        return Err(Error::tokenizer(format!("`tokenizer.json` has the version `{version}`, expected 1.0")));
    }
    let mut tokenizer = Library::new(AnyModel::Table(Bpe::new(table, document.model)));
    tokenizer.with_normalizer(document.normalizer).map_err(Error::tokenizer)?;
    tokenizer.with_pre_tokenizer(document.pre_tokenizer);
    tokenizer.with_post_processor(document.post_processor);
    tokenizer.with_decoder(document.decoder);
    tokenizer.add_tokens(document.added_tokens).map_err(Error::tokenizer)?;
    Ok(tokenizer)
}

/// The model of a tokenizer, which splits words into tokens. Clones share the vocabulary.
#[derive(Clone, Debug)]
pub(super) enum AnyModel {
    Table(Bpe),
    Library(Arc<ModelWrapper>),
}

impl<'de> Deserialize<'de> for AnyModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        ModelWrapper::deserialize(deserializer).map(|model| Self::Library(Arc::new(model)))
    }
}

impl Model for AnyModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> Result<Vec<Token>> {
        match self {
            Self::Table(model) => model.tokenize(word),
            Self::Library(model) => model.tokenize(word),
        }
    }

    fn token_to_id(&self, text: &str) -> Option<u32> {
        match self {
            Self::Table(model) => model.id(text),
            Self::Library(model) => model.token_to_id(text),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Self::Table(model) => model.text(id),
            Self::Library(model) => model.id_to_token(id),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            Self::Table(model) => model.vocabulary(),
            Self::Library(model) => model.get_vocab(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Table(model) => model.size(),
            Self::Library(model) => model.get_vocab_size(),
        }
    }

    fn save(&self, _: &Path, _: Option<&str>) -> Result<Vec<PathBuf>> {
        Err("a runner writes no tokenizer".into())
    }

    fn get_trainer(&self) -> TrainerWrapper {
        match self {
            Self::Table(_) => tokenizers::models::bpe::BpeTrainer::default().into(),
            Self::Library(model) => model.get_trainer(),
        }
    }
}
