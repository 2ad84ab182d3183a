//! Tokenizers: from `tokenizer.json`, or built from a GGUF vocabulary.

mod byte_level;
mod token_bytes;

use std::sync::{Mutex, PoisonError};

use tokenizers::Tokenizer as Library;
use vocabulary::{Vocabulary, VocabularyKind};

use crate::Error;
use crate::sentencepiece::SentencePiece;

pub(crate) use token_bytes::TokenBytes;

/// What to do about special tokens when text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// Add those that the model wants around a text, such as BOS.
    pub add: bool,
    /// Read those in the text as such, not as text.
    pub parse: bool,
}

/// Text to tokens and back.
#[derive(Debug)]
pub struct Tokenizer(Kind);

#[derive(Debug)]
enum Kind {
    /// Behind a lock because reading special tokens as text is a switch of the library's tokenizer.
    Library {
        tokenizer: Box<Mutex<Library>>,
        around: Around,
    },
    SentencePiece(Box<SentencePiece>),
}

/// What stands around a text, where the library does not know.
#[derive(Clone, Copy, Debug, Default)]
struct Around {
    bos: Option<u32>,
    eos: Option<u32>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn from_json(raw: &[u8]) -> Result<Self, Error> {
        let mut tokenizer = Library::from_bytes(raw).map_err(Error::tokenizer)?;
        // Some files cut or pad texts for training; a prompt is neither.
        tokenizer.with_truncation(None).map_err(Error::tokenizer)?;
        tokenizer.with_padding(None);
        Ok(Self(Kind::Library { tokenizer: Box::new(Mutex::new(tokenizer)), around: Around::default() }))
    }

    /// Builds a tokenizer from a GGUF vocabulary.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Self, Error> {
        if vocabulary.pieces.is_empty() {
            return Err(Error::tokenizer("the vocabulary is empty"));
        }
        match &vocabulary.kind {
            VocabularyKind::Other(model) => {
                Err(Error::tokenizer(format!("the tokenizer model `{model}` is not known yet; expected gpt2 or llama")))
            }
            VocabularyKind::SentencePiece => Ok(Self(Kind::SentencePiece(Box::new(SentencePiece::new(vocabulary))))),
            VocabularyKind::ByteLevel { .. } => {
                let around = Around {
                    bos: vocabulary.bos.filter(|_| vocabulary.add_bos),
                    eos: vocabulary.eos.filter(|_| vocabulary.add_eos),
                };
                let tokenizer = byte_level::build(vocabulary)?;
                Ok(Self(Kind::Library { tokenizer: Box::new(Mutex::new(tokenizer)), around }))
            }
        }
    }

    /// The number of tokens.
    pub fn size(&self) -> usize {
        match &self.0 {
            Kind::Library { tokenizer, .. } => lock(tokenizer).get_vocab_size(true),
            Kind::SentencePiece(tokenizer) => tokenizer.size(),
        }
    }

    /// The token with exactly this text.
    pub fn id(&self, text: &str) -> Option<u32> {
        match &self.0 {
            Kind::Library { tokenizer, .. } => lock(tokenizer).token_to_id(text),
            Kind::SentencePiece(tokenizer) => tokenizer.id(text),
        }
    }

    /// The text of a token as the vocabulary has it.
    pub fn piece(&self, id: u32) -> Option<String> {
        match &self.0 {
            Kind::Library { tokenizer, .. } => lock(tokenizer).id_to_token(id),
            Kind::SentencePiece(tokenizer) => tokenizer.piece(id).map(str::to_owned),
        }
    }

    /// The bytes of every token, by id. Refused where the vocabulary does not tell them, as `WordPiece` does not.
    pub(crate) fn token_bytes(&self) -> Result<Vec<TokenBytes>, Error> {
        let size = self.size();
        match &self.0 {
            Kind::Library { tokenizer, .. } => token_bytes::of_library(&lock(tokenizer), size),
            Kind::SentencePiece(tokenizer) => {
                let special = |id: u32| TokenBytes::Special(tokenizer.piece(id).unwrap_or_default().to_owned());
                let bytes = |id: u32| {
                    let mut bytes = Vec::new();
                    tokenizer.decode(id, false, &mut bytes);
                    if bytes.is_empty() { special(id) } else { TokenBytes::Text(bytes) }
                };
                Ok((0..size as u32).map(bytes).collect())
            }
        }
    }

    /// Cuts text into tokens.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, Error> {
        match &self.0 {
            Kind::Library { tokenizer, around } => {
                let mut tokenizer = lock(tokenizer);
                tokenizer.set_encode_special_tokens(!special.parse);
                let encoding = tokenizer.encode_fast(text, special.add).map_err(Error::tokenizer)?;
                let around = if special.add { *around } else { Around::default() };
                Ok(around.bos.into_iter().chain(encoding.get_ids().iter().copied()).chain(around.eos).collect())
            }
            Kind::SentencePiece(tokenizer) => Ok(tokenizer.encode(text, special)),
        }
    }

    /// The text of tokens; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], with_special: bool) -> Result<String, Error> {
        match &self.0 {
            Kind::Library { tokenizer, .. } => lock(tokenizer).decode(ids, !with_special).map_err(Error::tokenizer),
            Kind::SentencePiece(tokenizer) => {
                let mut bytes = Vec::new();
                for id in ids {
                    tokenizer.decode(*id, with_special, &mut bytes);
                }
                let text = String::from_utf8_lossy(&bytes);
                let own = if tokenizer.adds_space_prefix() { text.strip_prefix(' ').unwrap_or(&text) } else { &text };
                Ok(own.to_owned())
            }
        }
    }
}

fn lock(tokenizer: &Mutex<Library>) -> std::sync::MutexGuard<'_, Library> {
    // The library changes nothing half-way.
    tokenizer.lock().unwrap_or_else(PoisonError::into_inner)
}
