//! Vocabulary of a GGUF file: tokens, their types, and scores or merges.

use serde_json::Value as Json;

use super::sentencepiece;
use super::token_list::{TokenizerModel, TokensById, Vocabulary, looks_special, merges};
use super::tokenizer_json::{TokenizerJson, fail, kind};
use import::Error;
use vocabulary::{PieceKind, pre_tokenizer};

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
