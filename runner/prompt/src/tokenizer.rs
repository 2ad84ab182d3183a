//! Tokenizers: from `tokenizer.json`, or built from a GGUF vocabulary.

mod bpe;
mod byte_level;
#[cfg(test)]
mod fixtures;
mod library;
mod own;
mod pair;
mod pieces;
mod sentencepiece;
mod spaces;
mod token_bytes;
mod unigram;
mod wordpiece;

use std::sync::{Arc, Mutex, PoisonError};

use vocabulary::token_table::Settings;
use vocabulary::{TokenTable, Vocabulary, VocabularyKind};

use crate::Error;
use library::Library;
use own::Own;

pub use pair::{Pair, PairForm};
pub(crate) use token_bytes::TokenBytes;

/// What to do about special tokens when text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// Add those that the model wants around a text, such as BOS.
    pub add: bool,
    /// Read those in the text as such, not as text.
    pub parse: bool,
}

/// Bytes of a text that is long.
const LONG: usize = 256 << 10;

/// Text to tokens and back.
#[derive(Debug)]
pub struct Tokenizer {
    kind: Kind,
    /// Texts lose the spaces before some punctuation.
    cleans_spaces: bool,
    /// Held for a long text: each takes memory while it is cut.
    long: Mutex<()>,
}

#[derive(Debug)]
enum Kind {
    /// Reading special tokens as text is a switch of the library's tokenizer, so there are two, which share the vocabulary: texts in one
    /// mode do not wait for texts in the other.
    Library {
        /// Reads special tokens as such.
        tokenizer: Box<Library>,
        /// Reads them as text.
        literal: Box<Library>,
        around: Around,
    },
    Own(Box<Own>),
}

/// What stands around a text, where the library does not know.
#[derive(Clone, Copy, Debug, Default)]
struct Around {
    before: Option<u32>,
    after: Option<u32>,
    /// Between two texts, after what ends the first.
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
    /// Reads a `tokenizer.json`.
    pub fn from_json(raw: &[u8]) -> Result<Self, Error> {
        match TokenTable::of_tokenizer_json(raw).map_err(Error::tokenizer)? {
            Some(table) => Self::from_table(TokenTable::open(Arc::new(table)).map_err(Error::tokenizer)?),
            None => Ok(Self::of_library(library::read(raw)?, Around::default())),
        }
    }

    /// Builds a tokenizer from a GGUF vocabulary.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Self, Error> {
        let table = TokenTable::of_vocabulary(vocabulary).map_err(Error::tokenizer)?;
        Self::from_table(TokenTable::open(Arc::new(table)).map_err(Error::tokenizer)?)
    }

    /// Builds a tokenizer over a table: nothing of the vocabulary is copied.
    pub fn from_table(table: TokenTable) -> Result<Self, Error> {
        match table.settings().map_err(Error::tokenizer)? {
            Settings::TokenizerJson(document) => {
                Ok(Self::of_library(library::over(table, document.get())?, Around::default()))
            }
            Settings::Gguf(vocabulary) => Self::over(table, *vocabulary),
        }
    }

    /// Builds the tokenizer of a GGUF vocabulary whose pieces and merges are in a table.
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
                kind: Kind::Own(Box::new(Own::new(table, vocabulary)?)),
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
        Self { kind: Kind::Library { tokenizer, literal, around }, cleans_spaces: false, long: Mutex::new(()) }
    }

    /// The number of tokens.
    pub fn size(&self) -> usize {
        match &self.kind {
            Kind::Library { tokenizer, .. } => tokenizer.get_vocab_size(true),
            Kind::Own(tokenizer) => tokenizer.size(),
        }
    }

    /// The token with exactly this text.
    pub fn id(&self, text: &str) -> Option<u32> {
        match &self.kind {
            Kind::Library { tokenizer, .. } => tokenizer.token_to_id(text),
            Kind::Own(tokenizer) => tokenizer.id(text),
        }
    }

    /// The text of a token as the vocabulary has it.
    pub fn piece(&self, id: u32) -> Option<String> {
        match &self.kind {
            Kind::Library { tokenizer, .. } => tokenizer.id_to_token(id),
            Kind::Own(tokenizer) => tokenizer.piece(id).map(str::to_owned),
        }
    }

    /// The bytes of every token, by id. Refused where the vocabulary does not tell them, as `WordPiece` does not.
    pub(crate) fn token_bytes(&self) -> Result<Vec<TokenBytes>, Error> {
        let size = self.size();
        match &self.kind {
            Kind::Library { tokenizer, .. } => token_bytes::of_library(tokenizer, size),
            Kind::Own(tokenizer) => {
                let special = |id: u32| TokenBytes::Special(tokenizer.piece(id).unwrap_or_default().to_owned());
                let bytes = |id: u32| {
                    let bytes = tokenizer.bytes(id, false);
                    if bytes.is_empty() { special(id) } else { TokenBytes::Text(bytes) }
                };
                Ok((0..size as u32).map(bytes).collect())
            }
        }
    }

    /// The bytes of one token; special ones have none unless they are wanted.
    #[cfg(test)]
    fn bytes_of(&self, id: u32, with_special: bool) -> Result<Vec<u8>, Error> {
        match (&self.kind, self.token_bytes()?.swap_remove(id as usize)) {
            (Kind::Own(tokenizer), _) => Ok(tokenizer.bytes(id, with_special)),
            (_, TokenBytes::Text(bytes)) => Ok(bytes),
            (_, TokenBytes::Special(text)) => Ok(if with_special { text.into_bytes() } else { Vec::new() }),
        }
    }

    /// Cuts text into tokens; long texts one after the other.
    ///
    /// # Errors
    /// [`Error::TooLong`] beyond [`MAX_TEXT`](crate::MAX_TEXT) bytes.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, Error> {
        if text.len() > crate::MAX_TEXT {
            return Err(Error::TooLong(text.len()));
        }
        let _alone = (text.len() > LONG).then(|| self.long.lock().unwrap_or_else(PoisonError::into_inner));
        match &self.kind {
            Kind::Library { tokenizer, literal, around } => {
                let tokenizer = if special.parse { tokenizer } else { literal };
                let encoding = tokenizer.encode_fast(text, special.add).map_err(Error::tokenizer)?;
                let around = if special.add { *around } else { Around::default() };
                Ok(around.before.into_iter().chain(encoding.get_ids().iter().copied()).chain(around.after).collect())
            }
            Kind::Own(tokenizer) => tokenizer.encode(text, special),
        }
    }

    /// The text of tokens; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], with_special: bool) -> Result<String, Error> {
        match &self.kind {
            Kind::Library { tokenizer, .. } => tokenizer.decode(ids, !with_special).map_err(Error::tokenizer),
            Kind::Own(tokenizer) => Ok(tokenizer.decode(ids, with_special)),
        }
    }

    /// The text of all tokens of a text: as [`decode`](Self::decode), and without the spaces that such texts lose. What is told while
    /// it is made does not lose them.
    pub fn whole_text(&self, ids: &[u32], with_special: bool) -> Result<String, Error> {
        let text = self.decode(ids, with_special)?;
        Ok(if self.cleans_spaces { spaces::cleaned(&text) } else { text })
    }
}
