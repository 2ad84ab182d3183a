//! Vocabulary of a GGUF file: tokens, their types, and scores or merges.

use serde_json::Value as Json;

use super::sentencepiece;
use super::tokenizer_json::{TokenizerJson, fail, kind};
use formats::gguf::OwnedValue;
use import::Error;
use vocabulary::{PieceKind, pre_tokenizer};

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

/// Builds a vocabulary of `rows` tokens.
///
/// # Errors
/// GGUF cannot express the model, or a field does not have the form that the `tokenizers` library
/// writes.
pub(super) fn vocabulary(json: &TokenizerJson, rows: u64, losses: &mut Vec<String>) -> Result<Vocabulary, Error> {
    let byte_level = json.steps("pre_tokenizer").iter().any(|step| kind(step) == "ByteLevel");
    match json.kind() {
        "BPE" if byte_level => self::byte_level(json, rows, losses),
        "BPE" | "Unigram" if json.flag("byte_fallback") => sentencepiece::vocabulary(json, rows, losses),
        "" => Err(fail("it has no `model.type`")),
        other => Err(fail(format!(
            "a tokenizer of the kind {other} without bytes cannot be written to GGUF; expected byte-level BPE, or BPE or \
             Unigram with byte fallback"
        ))),
    }
}

fn byte_level(json: &TokenizerJson, rows: u64, losses: &mut Vec<String>) -> Result<Vocabulary, Error> {
    for step in json.steps("normalizer") {
        losses.push(format!("the tokenizer's normalizer {} is left out: GGUF readers have none", kind(step)));
    }
    let patterns = patterns(json, losses);
    let known = pre_tokenizer::by_patterns(&patterns, json.flag("ignore_merges"));
    let pre = known.map_or("default", |known| known.name);
    if known.is_none() {
        losses.push(
            "how the tokenizer splits text has no name in GGUF; readers will split as they do by default".to_owned(),
        );
    }
    let pieces = json.model("vocab").and_then(Json::as_object).ok_or_else(|| fail("`model.vocab` is not an object"))?;
    let mut tokens = TokensById::new(rows);
    for (text, id) in pieces {
        let id = id.as_u64().ok_or_else(|| fail(format!("token `{text}` has no number")))?;
        tokens.put(id, text, PieceKind::Normal);
    }
    for added in &json.added {
        let control = added.special || looks_special(&added.content);
        let kind = if control { PieceKind::Control } else { PieceKind::UserDefined };
        tokens.put(added.id, &added.content, kind);
    }
    let (tokens, types) = tokens.padded(losses);
    let merges = merges(json)?.into_iter().map(|(left, right)| format!("{left} {right}")).collect();
    Ok(Vocabulary { model: TokenizerModel::ByteLevel { pre, merges }, tokens, types })
}

/// Returns the patterns that split text, in order. Steps that have the same effect give the same
/// pattern.
fn patterns(json: &TokenizerJson, losses: &mut Vec<String>) -> Vec<String> {
    let mut patterns = Vec::new();
    for step in json.steps("pre_tokenizer") {
        let flag = |key: &str, default: bool| step.get(key).and_then(Json::as_bool).unwrap_or(default);
        match kind(step) {
            "ByteLevel" => {
                if flag("add_prefix_space", false) {
                    losses.push("the tokenizer puts a space before text; GGUF readers will not".to_owned());
                }
                if flag("use_regex", true) {
                    patterns.push(pre_tokenizer::GPT2.to_owned());
                }
            }
            "Digits" if flag("individual_digits", false) => patterns.push(pre_tokenizer::DIGITS.to_owned()),
            "Split" => patterns.push(split_pattern(step).unwrap_or_else(|| step.to_string())),
            // Matches no pattern of the table.
            _ => patterns.push(step.to_string()),
        }
    }
    patterns
}

/// Returns the pattern of a split that keeps each match as a piece.
fn split_pattern(step: &Json) -> Option<String> {
    let pattern = step.get("pattern")?.get("Regex")?.as_str()?;
    let behavior = step.get("behavior")?.as_str()?;
    let inverted = step.get("invert").and_then(Json::as_bool).unwrap_or(false);
    // Keeping only the matches is equivalent if the pattern matches all text, as these patterns do.
    matches!((behavior, inverted), ("Isolated", false) | ("Removed", true)).then(|| pattern.to_owned())
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
