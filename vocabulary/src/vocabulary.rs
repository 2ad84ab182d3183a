//! A vocabulary as in GGUF files, from which a tokenizer is built if there is no `tokenizer.json`.

use formats::Gguf;
use formats::gguf::Value;
use serde::{Deserialize, Serialize};

use crate::pre_tokenizer::{self, Bos};
use crate::special_tokens::{BEGINS, ENDS, GAPS, SHOWN};
use crate::{Error, PreTokenizer};

/// Pre-tokenizer names of vocabularies that put a separator between two texts, unless the file
/// states otherwise (`llama-vocab.cpp`).
const SEPARATED: [&str; 3] = ["roberta-bpe", "jina-v1-en", "jina-v2-code"];

/// A vocabulary with everything that a tokenizer needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "a file has as many switches")]
pub struct Vocabulary {
    /// The tokenization algorithm.
    pub kind: VocabularyKind,
    /// The pieces; a token's id is its index. They are not serialized, because a
    /// [`TokenTable`](crate::TokenTable) contains them.
    #[serde(skip)]
    pub pieces: Vec<VocabularyEntry>,
    /// The first token or merge whose text in the file is not UTF-8, as named in messages.
    pub not_utf8: Option<String>,
    /// BOS, the token that begins a text.
    pub bos: Option<u32>,
    /// EOS, the token that ends a text.
    pub eos: Option<u32>,
    /// Padding token.
    pub padding: Option<u32>,
    /// Token that separates texts, and that ends them for encoders.
    pub separator: Option<u32>,
    /// Token for text that cannot be tokenized.
    pub unknown: Option<u32>,
    /// Tokens that end a generation, EOS first.
    pub ends: Vec<u32>,
    /// Whether [`bos`](Self::bos) is put before every text.
    pub add_bos: bool,
    /// Whether [`eos`](Self::eos) is put after every text.
    pub add_eos: bool,
    /// Whether [`separator`](Self::separator) is put between two texts, after the token that ends
    /// the first.
    pub add_separator: bool,
    /// Whether a space is put before every text.
    pub add_space_prefix: bool,
    /// True if the decoder removes the spaces before some punctuation.
    pub cleans_spaces: bool,
}

/// The tokenization algorithm, with its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VocabularyKind {
    /// BPE, byte-level with few exceptions; `tokenizer.ggml.model` is `gpt2` or `gemma4`.
    ByteLevel {
        /// `tokenizer.ggml.pre`: how text is split before merging.
        pre_tokenizer: String,
        /// Pairs separated by a space, best first. They are not serialized either.
        #[serde(skip)]
        merges: Vec<String>,
    },
    /// `SentencePiece`-style BPE by scores with byte fallback; `tokenizer.ggml.model` is `llama`.
    SentencePiece,
    /// `WordPiece`: the longest matching pieces of each word, as in BERT; `tokenizer.ggml.model` is
    /// `bert`. Pieces that begin a word start with `▁`.
    WordPiece {
        /// Whether letters are lowercased.
        lowercase: bool,
        /// Whether accents are removed.
        strip_accents: bool,
    },
    /// The most likely segmentation by scores, as in `SentencePiece`; `tokenizer.ggml.model` is
    /// `t5`.
    Unigram {
        /// `SentencePiece`'s table of character replacements; empty if characters are unchanged.
        character_map: Vec<u8>,
        /// Whether runs of spaces are merged into one and trailing spaces are removed.
        merge_spaces: bool,
    },
    /// Another algorithm, by name.
    Other(String),
}

/// An entry of a vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct VocabularyEntry {
    /// Text as in the file; bytes that are not UTF-8 are replaced.
    pub text: String,
    /// For [`VocabularyKind::SentencePiece`], pieces with a larger score are merged earlier; for
    /// [`VocabularyKind::Unigram`], they are more likely.
    pub score: f32,
    /// Kind of the piece.
    pub kind: PieceKind,
}

/// Kind of a piece; `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// Text.
    Normal = 1,
    /// Placeholder for text that cannot be tokenized.
    Unknown = 2,
    /// Control token: begins, ends or separates texts.
    Control = 3,
    /// User-defined token: matched in text before anything else.
    UserDefined = 4,
    /// Unused.
    Unused = 5,
    /// One byte, spelled `<0xXX>`.
    Byte = 6,
}

impl PieceKind {
    /// Converts GGUF's number of a kind; unknown numbers count as text.
    pub fn from_id(id: u64) -> Self {
        match id {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

impl Vocabulary {
    /// Creates a vocabulary without special tokens.
    pub fn new(kind: VocabularyKind, pieces: Vec<VocabularyEntry>) -> Self {
        Self {
            kind,
            pieces,
            not_utf8: None,
            bos: None,
            eos: None,
            padding: None,
            separator: None,
            unknown: None,
            ends: Vec::new(),
            add_bos: false,
            add_eos: false,
            add_separator: false,
            add_space_prefix: false,
            cleans_spaces: false,
        }
    }

    /// Reads the vocabulary of a file; `None` if it has none.
    ///
    /// # Errors
    /// Lists differ in length, or a list that the model needs is missing.
    pub fn read(gguf: &Gguf<'_>) -> Result<Option<Self>, Error> {
        let Some(pieces) = pieces(gguf)? else { return Ok(None) };
        let model = gguf.text("tokenizer.ggml.model").unwrap_or_default();
        let kind = VocabularyKind::Other(model.to_owned());
        let mut vocabulary = Self { not_utf8: not_utf8(gguf), ..Self::new(kind, pieces) };
        match model {
            "gpt2" => {
                let pre_tokenizer = gguf.text("tokenizer.ggml.pre").unwrap_or_default().to_owned();
                vocabulary.kind = VocabularyKind::ByteLevel { pre_tokenizer, merges: merges(gguf)? };
            }
            "gemma4" => {
                let pre_tokenizer = model.to_owned();
                vocabulary.kind = VocabularyKind::ByteLevel { pre_tokenizer, merges: merges(gguf)? };
            }
            "llama" => {
                scores(gguf, &mut vocabulary.pieces)?;
                vocabulary.kind = VocabularyKind::SentencePiece;
            }
            "bert" => {
                let flag = |key: &str| gguf.flag(&format!("tokenizer.ggml.normalizer.{key}"));
                let lowercase = flag("lowercase").unwrap_or(true);
                let strip_accents = flag("strip_accents").unwrap_or(lowercase);
                vocabulary.kind = VocabularyKind::WordPiece { lowercase, strip_accents };
            }
            "t5" => {
                scores(gguf, &mut vocabulary.pieces)?;
                let character_map = bytes(gguf, "tokenizer.ggml.precompiled_charsmap")?;
                let merge_spaces = gguf.flag("tokenizer.ggml.remove_extra_whitespaces").unwrap_or(false);
                vocabulary.kind = VocabularyKind::Unigram { character_map, merge_spaces };
            }
            _ => {}
        }
        vocabulary.read_special(gguf);
        Ok(Some(vocabulary))
    }

    /// Whether readers put BOS before a text if the file does not specify it.
    pub fn usual_bos(&self) -> bool {
        match &self.kind {
            VocabularyKind::SentencePiece | VocabularyKind::WordPiece { .. } => true,
            VocabularyKind::ByteLevel { .. } => self.split().is_some_and(|split| split.bos != Bos::Unusual),
            VocabularyKind::Unigram { .. } | VocabularyKind::Other(_) => false,
        }
    }

    /// Returns the pre-tokenizer of a BPE vocabulary, if it is known.
    fn split(&self) -> Option<&'static PreTokenizer> {
        match &self.kind {
            VocabularyKind::ByteLevel { pre_tokenizer, .. } => pre_tokenizer::of_file(pre_tokenizer),
            _ => None,
        }
    }

    /// Returns the text of a token.
    pub fn text(&self, id: u32) -> Option<&str> {
        self.pieces.get(id as usize).map(|piece| piece.text.as_str())
    }

    fn read_special(&mut self, gguf: &Gguf<'_>) {
        self.mark_control();
        let size = self.pieces.len() as u64;
        let id = |key: &str| {
            let id = gguf.unsigned(&format!("tokenizer.ggml.{key}_token_id")).filter(|id| *id < size);
            id.map(|id| id as u32).or_else(|| default_id(&self.kind, &self.pieces, key))
        };
        let flag = |key: &str| gguf.flag(&format!("tokenizer.ggml.{key}"));
        let (bos, eos, padding, unknown) = (id("bos"), id("eos"), id("padding"), id("unknown"));
        // The format spells the key this way.
        let separator = id("seperator");
        // Readers stop at these tokens too.
        let by_text = (0..)
            .zip(&self.pieces)
            .filter_map(|(id, piece)| (piece.kind == PieceKind::Control && is_end(&piece.text)).then_some(id));
        let named = [eos, id("eot"), id("eom"), id("fim_pad"), id("fim_rep"), id("fim_sep")];
        let mut ends: Vec<u32> = Vec::new();
        for id in named.into_iter().flatten() {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        // A file can have many of them. Only the few named ones can be duplicates.
        let few = ends.clone();
        ends.extend(by_text.filter(|id| !few.contains(id)));
        let always = self.split().is_some_and(|split| split.bos == Bos::Always);
        let add_bos = always || flag("add_bos_token").unwrap_or(self.usual_bos());
        let spaced = matches!(self.kind, VocabularyKind::SentencePiece);
        let add_space_prefix = flag("add_space_prefix").unwrap_or(spaced);
        let ended = matches!(self.kind, VocabularyKind::Unigram { .. });
        let add_eos = flag("add_eos_token").unwrap_or(ended);
        let separates = matches!(&self.kind, VocabularyKind::ByteLevel { pre_tokenizer, .. } if SEPARATED.contains(&pre_tokenizer.as_str()));
        self.add_separator = flag("add_sep_token").unwrap_or(separates);
        self.cleans_spaces = match &self.kind {
            VocabularyKind::WordPiece { .. } => true,
            _ => self.split().is_some_and(|split| split.cleans_spaces),
        };
        (self.bos, self.eos, self.padding, self.unknown) = (bos, eos, padding, unknown);
        (self.separator, self.ends) = (separator, ends);
        (self.add_bos, self.add_eos, self.add_space_prefix) = (add_bos, add_eos, add_space_prefix);
    }

    /// Corrects the kind of tokens whose text reveals their purpose.
    fn mark_control(&mut self) {
        let has = |text: &str| self.pieces.iter().any(|piece| piece.text == text);
        // In vocabularies with these tokens, the end of a message is not the end of the answer.
        let goes_on = has("<|end|>")
            && (has("<|return|>") && has("<|call|>") || has("<|flush|>") && (has("<|call|>") || has("<|calls|>")));
        // All such tokens begin and end like this; the check is fast for long vocabularies.
        let marked = |piece: &&mut VocabularyEntry| {
            piece.text.starts_with(['<', '[', '_', '▁']) && piece.text.ends_with(['>', ']', '['])
        };
        for piece in self.pieces.iter_mut().filter(marked) {
            let text = piece.text.as_str();
            if SHOWN.contains(&text) || goes_on && text == "<|end|>" {
                piece.kind = PieceKind::UserDefined;
            } else if is_end(text) || BEGINS.contains(&text) || GAPS.contains(&text) {
                piece.kind = PieceKind::Control;
            }
        }
    }
}

/// Returns the id that readers assume if the file does not name the token; the numbers are
/// llama.cpp's (`llama-vocab.cpp`).
fn default_id(kind: &VocabularyKind, pieces: &[VocabularyEntry], key: &str) -> Option<u32> {
    let numbers: &[(&str, u32)] = match kind {
        VocabularyKind::SentencePiece => &[("bos", 1), ("eos", 2), ("unknown", 0)],
        VocabularyKind::ByteLevel { pre_tokenizer, .. } => match pre_tokenizer.as_str() {
            "gemma4" => &[],
            "glm4" | "chatglm-bpe" => &[("eos", 11)],
            _ => &[("bos", 11), ("eos", 11)],
        },
        VocabularyKind::WordPiece { .. } => &[("bos", 101), ("unknown", 100), ("seperator", 102), ("padding", 0)],
        VocabularyKind::Unigram { .. } => &[("eos", 1), ("unknown", 2), ("padding", 0)],
        VocabularyKind::Other(_) => &[],
    };
    let id = numbers.iter().find(|(name, _)| *name == key)?.1;
    let piece = pieces.get(id as usize)?;
    // The number for byte-level BPE belongs to one model family. In other vocabularies it is a
    // normal token, for instance a comma, which decoders would omit if it were special.
    let text = matches!(kind, VocabularyKind::ByteLevel { .. }) && piece.kind != PieceKind::Control;
    (!text).then_some(id)
}

fn is_end(text: &str) -> bool {
    ENDS.contains(&text)
}

fn pieces(gguf: &Gguf<'_>) -> Result<Option<Vec<VocabularyEntry>>, Error> {
    let Some(texts) = gguf.array("tokenizer.ggml.tokens") else { return Ok(None) };
    let mut pieces: Vec<VocabularyEntry> = texts
        .iter()
        .map(|text| {
            let text = String::from_utf8_lossy(text.as_bytes().unwrap_or_default()).into_owned();
            VocabularyEntry { text, score: 0.0, kind: PieceKind::Normal }
        })
        .collect();
    if let Some(kinds) = list(gguf, "token_type", pieces.len())? {
        for (piece, kind) in pieces.iter_mut().zip(kinds) {
            piece.kind = PieceKind::from_id(kind.as_u64().unwrap_or(1));
        }
    }
    Ok(Some(pieces))
}

fn not_utf8(gguf: &Gguf<'_>) -> Option<String> {
    [("token", "tokens"), ("merge", "merges")].into_iter().find_map(|(what, key)| {
        let mut texts = gguf.array(&format!("tokenizer.ggml.{key}"))?.iter();
        texts.position(|text| text.as_str().is_none()).map(|position| format!("{what} {position}"))
    })
}

fn merges(gguf: &Gguf<'_>) -> Result<Vec<String>, Error> {
    let merges = gguf.array("tokenizer.ggml.merges");
    let merges = merges.ok_or_else(|| Error("there is no `tokenizer.ggml.merges`".to_owned()))?;
    let text = |merge: Value<'_>| String::from_utf8_lossy(merge.as_bytes().unwrap_or_default()).into_owned();
    Ok(merges.iter().map(text).collect())
}

/// Returns a list of bytes; empty if the key is missing.
fn bytes(gguf: &Gguf<'_>, key: &str) -> Result<Vec<u8>, Error> {
    let Some(list) = gguf.array(key) else { return Ok(Vec::new()) };
    let byte = |item: Value<'_>| match item {
        Value::I8(byte) => Some(byte.cast_unsigned()),
        other => other.as_u64().and_then(|byte| u8::try_from(byte).ok()),
    };
    list.iter().map(byte).collect::<Option<_>>().ok_or_else(|| Error(format!("`{key}` is not a list of bytes")))
}

fn scores(gguf: &Gguf<'_>, pieces: &mut [VocabularyEntry]) -> Result<(), Error> {
    let scores = list(gguf, "scores", pieces.len())?;
    let scores = scores.ok_or_else(|| Error("there is no `tokenizer.ggml.scores`".to_owned()))?;
    for (piece, score) in pieces.iter_mut().zip(scores) {
        piece.score = score.as_f64().unwrap_or(0.0) as f32;
    }
    Ok(())
}

/// Returns a list with one item for each token.
fn list<'a>(gguf: &Gguf<'a>, key: &str, tokens: usize) -> Result<Option<impl Iterator<Item = Value<'a>>>, Error> {
    let Some(list) = gguf.array(&format!("tokenizer.ggml.{key}")) else { return Ok(None) };
    if list.len() != tokens as u64 {
        return Err(Error(format!("`tokenizer.ggml.{key}` has {} items for {tokens} tokens", list.len())));
    }
    Ok(Some(list.iter()))
}

#[cfg(test)]
mod tests;
