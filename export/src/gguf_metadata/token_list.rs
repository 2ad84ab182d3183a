//! The vocabulary of a GGUF file: tokens by id, their kinds, merges.

use formats::gguf::OwnedValue;
use import::Error;
use serde_json::Value as Json;
use vocabulary::PieceKind;

use super::tokenizer_json::{TokenizerJson, fail};

/// Model of the tokenizer.
#[derive(Debug, PartialEq)]
pub(super) enum TokenizerModel {
    /// Byte-level BPE.
    ByteLevel {
        /// Name of the pre-tokenizer, which splits text before merges.
        pre: &'static str,
        /// Pairs separated by a space, best first.
        merges: Vec<String>,
    },
    /// Merging by scores, with byte fallback.
    SentencePiece {
        /// Score of each token.
        scores: Vec<f32>,
        /// Whether a space is put before text.
        add_space_prefix: bool,
    },
}

/// A vocabulary with as many tokens as the embedding has rows.
#[derive(Debug, PartialEq)]
pub(super) struct Vocabulary {
    pub(super) model: TokenizerModel,
    pub(super) tokens: Vec<String>,
    pub(super) types: Vec<PieceKind>,
}

impl Vocabulary {
    /// Returns the keys of the vocabulary.
    pub(super) fn keys(&self) -> Vec<(String, OwnedValue)> {
        let key = |name: &str, value: OwnedValue| (format!("tokenizer.ggml.{name}"), value);
        let (model, pre) = match &self.model {
            TokenizerModel::ByteLevel { pre, .. } => ("gpt2", *pre),
            TokenizerModel::SentencePiece { .. } => ("llama", "default"),
        };
        let mut keys = vec![
            key("model", model.into()),
            key("pre", pre.into()),
            key("tokens", OwnedValue::texts(&self.tokens)),
            key("token_type", OwnedValue::integers(self.types.iter().map(|kind| *kind as i32))),
        ];
        match &self.model {
            TokenizerModel::ByteLevel { merges, .. } => keys.push(key("merges", OwnedValue::texts(merges))),
            TokenizerModel::SentencePiece { scores, add_space_prefix } => {
                keys.push(key("scores", OwnedValue::floats(scores.iter().copied())));
                keys.push(key("add_space_prefix", (*add_space_prefix).into()));
            }
        }
        keys
    }
}

/// Returns the merges, best first. Files store a pair as a list or as text with a space.
pub(super) fn merges(json: &TokenizerJson) -> Result<Vec<(&str, &str)>, Error> {
    let merges = json.model("merges").and_then(Json::as_array).ok_or_else(|| fail("`model.merges` is not a list"))?;
    merges.iter().map(|merge| pair(merge).ok_or_else(|| fail(format!("merge {merge} is not a pair")))).collect()
}

fn pair(merge: &Json) -> Option<(&str, &str)> {
    match merge {
        Json::String(text) => text.split_once(' '),
        Json::Array(pair) => match &pair[..] {
            [Json::String(left), Json::String(right)] => Some((left.as_str(), right.as_str())),
            _ => None,
        },
        _ => None,
    }
}

/// True for added tokens that are not text although the file does not mark them as special. The
/// rule is llama.cpp's (`convert_hf_to_gguf.py`).
pub(super) fn looks_special(text: &str) -> bool {
    let between = |open: &str, close: &str| text.starts_with(open) && text.ends_with(close);
    let known = ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text);
    known || between("<|", "|>") || between("<\u{ff5c}", "\u{ff5c}>") || between("<unused", ">")
}

/// Tokens by id.
pub(super) struct TokensById {
    slots: Vec<Option<(String, PieceKind)>>,
    /// Texts of tokens whose id is beyond the rows of the embedding.
    beyond: Vec<String>,
}

impl TokensById {
    /// Creates as many slots as the embedding has rows; `rows` was checked with the blueprint.
    pub(super) fn new(rows: u64) -> Self {
        Self { slots: vec![None; rows as usize], beyond: Vec::new() }
    }

    /// Stores a token at its id and returns the index; `None` if the id is beyond the rows of the
    /// embedding. A later token replaces an earlier one, so added tokens take precedence.
    pub(super) fn put(&mut self, id: u64, text: &str, kind: PieceKind) -> Option<usize> {
        let place = usize::try_from(id).ok().filter(|place| *place < self.slots.len());
        match place {
            Some(place) => self.slots[place] = Some((text.to_owned(), kind)),
            None => self.beyond.push(text.to_owned()),
        }
        place
    }

    /// Returns texts and types. Ids without a token are filled as the converter does.
    pub(super) fn padded(self, losses: &mut Vec<String>) -> (Vec<String>, Vec<PieceKind>) {
        if let Some(first) = self.beyond.first() {
            let (count, rows) = (self.beyond.len(), self.slots.len());
            losses.push(format!(
                "{count} tokens beyond the {rows} rows of the embedding are left out, `{first}` among them"
            ));
        }
        let filled = |(id, slot): (usize, Option<_>)| slot.unwrap_or_else(|| (format!("[PAD{id}]"), PieceKind::Unused));
        self.slots.into_iter().enumerate().map(filled).unzip()
    }
}
