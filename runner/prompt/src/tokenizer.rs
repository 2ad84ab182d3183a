//! Tokenizers: from a `tokenizer.json`, or built from a GGUF vocabulary.

mod bpe;
mod byte_level;
#[cfg(test)]
mod fixtures;
mod library;
mod pair;
mod pieces;
mod sentencepiece;
mod spaces;
mod token_bytes;
mod unigram;
mod vocabulary_tokenizer;
mod wordpiece;

use std::sync::{Arc, Mutex, PoisonError};

use vocabulary::token_table::Settings;
use vocabulary::{TokenTable, Vocabulary, VocabularyKind};

use crate::Error;
use library::Library;
use vocabulary_tokenizer::VocabularyTokenizer;

pub use pair::{Pair, PairForm};
pub(crate) use token_bytes::TokenBytes;

/// Treatment of special tokens when text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// Whether the special tokens that the model expects around a text are added, such as BOS.
    pub add: bool,
    /// Whether special tokens in the text are parsed as such; otherwise they are plain text.
    pub parse: bool,
}

/// Texts above this size in bytes are tokenized one at a time.
const LONG: usize = 256 << 10;

/// Converts text to tokens and back.
#[derive(Debug)]
pub struct Tokenizer {
    kind: TokenizerKind,
    /// Whether the decoder removes the spaces before some punctuation.
    cleans_spaces: bool,
    /// Locked while a long text is tokenized, which takes much memory.
    long: Mutex<()>,
}

#[derive(Debug)]
enum TokenizerKind {
    /// A tokenizer of the crate `tokenizers`. Its treatment of special tokens in text is a mutable
    /// setting. There are therefore two instances, which share the vocabulary, so that texts in one
    /// mode do not wait for texts in the other.
    Library {
        /// Parses special tokens as such.
        tokenizer: Box<Library>,
        /// Treats special tokens as plain text.
        literal: Box<Library>,
        around: Around,
    },
    VocabularyTokenizer(Box<VocabularyTokenizer>),
}

/// Special tokens around a text, if the library does not add them.
#[derive(Clone, Copy, Debug, Default)]
struct Around {
    before: Option<u32>,
    after: Option<u32>,
    /// Token between two texts, after the token that ends the first.
    between: Option<u32>,
}

impl Around {
    fn of(vocabulary: &Vocabulary) -> Self {
        // BERT's texts always have both.
        if matches!(vocabulary.kind, VocabularyKind::WordPiece { .. }) {
            let after = vocabulary.separator.or(vocabulary.eos);
            return Self { before: vocabulary.bos, after, between: after.filter(|_| vocabulary.add_separator) };
        }
        Self {
            before: vocabulary.bos.filter(|_| vocabulary.add_bos),
            after: vocabulary.eos.filter(|_| vocabulary.add_eos),
            between: vocabulary.separator.or(vocabulary.eos).filter(|_| vocabulary.add_separator),
        }
    }
}

impl Tokenizer {
    /// Creates a tokenizer from a `tokenizer.json`.
    pub fn from_json(raw: &[u8]) -> Result<Self, Error> {
        match TokenTable::of_tokenizer_json(raw).map_err(Error::tokenizer)? {
            Some(table) => Self::from_table(TokenTable::open(Arc::new(table)).map_err(Error::tokenizer)?),
            None => Ok(Self::of_library(library::read(raw)?, Around::default())),
        }
    }

    /// Creates a tokenizer from a GGUF vocabulary.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Self, Error> {
        let table = TokenTable::of_vocabulary(vocabulary).map_err(Error::tokenizer)?;
        Self::from_table(TokenTable::open(Arc::new(table)).map_err(Error::tokenizer)?)
    }

    /// Creates a tokenizer over a table, without copying the vocabulary.
    pub fn from_table(table: TokenTable) -> Result<Self, Error> {
        match table.settings().map_err(Error::tokenizer)? {
            Settings::TokenizerJson(document) => {
                Ok(Self::of_library(library::over(table, document.get())?, Around::default()))
            }
            Settings::Gguf(vocabulary) => Self::over(table, *vocabulary),
        }
    }

    /// Creates the tokenizer of a GGUF vocabulary whose pieces and merges are in a table.
    pub fn over(table: TokenTable, vocabulary: Vocabulary) -> Result<Self, Error> {
        if table.is_empty() {
            return Err(Error::tokenizer("the vocabulary is empty"));
        }
        let (around, cleans_spaces) = (Around::of(&vocabulary), vocabulary.cleans_spaces);
        let tokenizer = match &vocabulary.kind {
            VocabularyKind::Other(model) => {
                let known = "gpt2, llama, bert, t5 or gemma4";
                return Err(Error::tokenizer(format!(
                    "the tokenizer model `{model}` is not known yet; expected {known}"
                )));
            }
            VocabularyKind::ByteLevel { pre_tokenizer, .. } => {
                Self::of_library(byte_level::build(&table, pre_tokenizer)?, around)
            }
            _ => Self {
                kind: TokenizerKind::VocabularyTokenizer(Box::new(VocabularyTokenizer::new(table, vocabulary)?)),
                cleans_spaces: false,
                long: Mutex::new(()),
            },
        };
        Ok(Self { cleans_spaces, ..tokenizer })
    }

    fn of_library(tokenizer: Library, around: Around) -> Self {
        let mut tokenizer = Box::new(tokenizer);
        let mut literal = tokenizer.clone();
        tokenizer.set_encode_special_tokens(false);
        literal.set_encode_special_tokens(true);
        Self { kind: TokenizerKind::Library { tokenizer, literal, around }, cleans_spaces: false, long: Mutex::new(()) }
    }

    /// Returns the number of tokens.
    pub fn size(&self) -> usize {
        match &self.kind {
            TokenizerKind::Library { tokenizer, .. } => tokenizer.get_vocab_size(true),
            TokenizerKind::VocabularyTokenizer(tokenizer) => tokenizer.size(),
        }
    }

    /// Returns the token with exactly this text.
    pub fn id(&self, text: &str) -> Option<u32> {
        match &self.kind {
            TokenizerKind::Library { tokenizer, .. } => tokenizer.token_to_id(text),
            TokenizerKind::VocabularyTokenizer(tokenizer) => tokenizer.id(text),
        }
    }

    /// Returns the text of a token as in the vocabulary.
    pub fn piece(&self, id: u32) -> Option<String> {
        match &self.kind {
            TokenizerKind::Library { tokenizer, .. } => tokenizer.id_to_token(id),
            TokenizerKind::VocabularyTokenizer(tokenizer) => tokenizer.piece(id).map(str::to_owned),
        }
    }

    /// Returns the bytes of every token, by id. Fails for vocabularies that do not specify them,
    /// such as `WordPiece`.
    pub(crate) fn token_bytes(&self) -> Result<Vec<TokenBytes>, Error> {
        let size = self.size();
        match &self.kind {
            TokenizerKind::Library { tokenizer, .. } => token_bytes::of_library(tokenizer, size),
            TokenizerKind::VocabularyTokenizer(tokenizer) => {
                let special = |id: u32| TokenBytes::Special(tokenizer.piece(id).unwrap_or_default().to_owned());
                let bytes = |id: u32| {
                    let bytes = tokenizer.bytes(id, false);
                    if bytes.is_empty() { special(id) } else { TokenBytes::Text(bytes) }
                };
                Ok((0..size as u32).map(bytes).collect())
            }
        }
    }

    /// Returns the bytes of one token; special tokens have none unless `with_special` is true.
    #[cfg(test)]
    fn bytes_of(&self, id: u32, with_special: bool) -> Result<Vec<u8>, Error> {
        match (&self.kind, self.token_bytes()?.swap_remove(id as usize)) {
            (TokenizerKind::VocabularyTokenizer(tokenizer), _) => Ok(tokenizer.bytes(id, with_special)),
            (_, TokenBytes::Text(bytes)) => Ok(bytes),
            (_, TokenBytes::Special(text)) => Ok(if with_special { text.into_bytes() } else { Vec::new() }),
        }
    }

    /// Tokenizes a text. Long texts are tokenized one at a time.
    ///
    /// # Errors
    /// [`Error::TooLong`] beyond [`MAX_TEXT`](crate::MAX_TEXT) bytes.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, Error> {
        if text.len() > crate::MAX_TEXT {
            return Err(Error::TooLong(text.len()));
        }
        let _alone = (text.len() > LONG).then(|| self.long.lock().unwrap_or_else(PoisonError::into_inner));
        match &self.kind {
            TokenizerKind::Library { tokenizer, literal, around } => {
                let tokenizer = if special.parse { tokenizer } else { literal };
                let encoding = tokenizer.encode_fast(text, special.add).map_err(Error::tokenizer)?;
                let around = if special.add { *around } else { Around::default() };
                Ok(around.before.into_iter().chain(encoding.get_ids().iter().copied()).chain(around.after).collect())
            }
            TokenizerKind::VocabularyTokenizer(tokenizer) => tokenizer.encode(text, special),
        }
    }

    /// Decodes tokens to text; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], with_special: bool) -> Result<String, Error> {
        match &self.kind {
            TokenizerKind::Library { tokenizer, .. } => tokenizer.decode(ids, !with_special).map_err(Error::tokenizer),
            TokenizerKind::VocabularyTokenizer(tokenizer) => Ok(tokenizer.decode(ids, with_special)),
        }
    }

    /// Decodes the tokens of a complete text: like [`decode`](Self::decode), but with the spaces
    /// before some punctuation removed, if the vocabulary requires this. Streamed text keeps these
    /// spaces.
    pub fn whole_text(&self, ids: &[u32], with_special: bool) -> Result<String, Error> {
        let text = self.decode(ids, with_special)?;
        Ok(if self.cleans_spaces { spaces::cleaned(&text) } else { text })
    }
}
