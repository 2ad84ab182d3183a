//! Vocabularies of `SentencePiece`'s kind: merging by scores, with a token for each byte.
//!
//! A `tokenizer.json` merges pairs by their rank, a GGUF file merges pieces by their score. The
//! score of a piece is derived from the first pair that forms it.
//!
//! Both give the same tokens for all texts if they give the same tokens for the text of each piece.
//! A first difference is a pair of neighbours that only one of them merges, and earlier merges
//! within that pair do not depend on the text around it. The property is checked for every piece;
//! violations are reported as losses.

use std::collections::{HashMap, HashSet};

use serde_json::Value as Json;

use vocabulary::PieceKind;

use super::token_list::{TokenizerModel, TokensById, Vocabulary, looks_special, merges};
use super::tokenizer_json::{TokenizerJson, fail, kind};
use import::Error;

/// Character that represents a space in pieces.
const SPACE: &str = "\u{2581}";
/// Score of tokens that are never merged, as converters write it.
const NOT_MERGED: f32 = -1000.0;
/// Longest piece, in bytes, that is checked: the time of the check grows with the cube of the
/// length.
const LONGEST_CHECKED: usize = 64;

/// Builds a vocabulary of `rows` tokens.
///
/// # Errors
/// A field does not have the form that the `tokenizers` library writes.
pub(super) fn vocabulary(json: &TokenizerJson, rows: u64, losses: &mut Vec<String>) -> Result<Vocabulary, Error> {
    let pieces = pieces(json)?;
    let unknown = unknown(json);
    let mut tokens = TokensById::new(rows);
    let mut scores = vec![NOT_MERGED; rows as usize];
    let mut merged = Vec::new();
    // Added tokens are matched before any merge.
    let added: HashSet<u64> = json.added.iter().map(|added| added.id).collect();
    for piece in &pieces {
        let kind = piece_type(piece.text, unknown);
        match (tokens.put(piece.id, piece.text, kind), kind) {
            (Some(_), PieceKind::Normal) if !added.contains(&piece.id) => merged.push(piece),
            (Some(place), PieceKind::Byte) => scores[place] = 0.0,
            _ => {}
        }
    }
    match json.kind() {
        "Unigram" => {
            for piece in &merged {
                scores[piece.id as usize] = piece.score;
            }
            losses
                .push("the tokenizer looks for the likeliest pieces (Unigram); GGUF readers merge by score".to_owned());
        }
        _ => by_rank(&merged, &merges(json)?, &mut scores, losses),
    }
    for added in &json.added {
        let kind = match piece_type(&added.content, unknown) {
            PieceKind::Normal if added.special || looks_special(&added.content) => PieceKind::Control,
            PieceKind::Normal => PieceKind::UserDefined,
            other => other,
        };
        // Readers match these tokens in the original text.
        let text =
            if kind == PieceKind::UserDefined { added.content.replace(SPACE, " ") } else { added.content.clone() };
        if let Some(place) = tokens.put(added.id, &text, kind) {
            scores[place] = if kind == PieceKind::Byte { 0.0 } else { NOT_MERGED };
        }
    }
    let (tokens, types) = tokens.padded(losses);
    let add_space_prefix = add_space_prefix(json, &merged, losses);
    Ok(Vocabulary { model: TokenizerModel::SentencePiece { scores, add_space_prefix }, tokens, types })
}

struct MergedPiece<'a> {
    id: u64,
    text: &'a str,
    /// 0 if the model has no scores.
    score: f32,
}

fn pieces(json: &TokenizerJson) -> Result<Vec<MergedPiece<'_>>, Error> {
    match json.model("vocab") {
        Some(Json::Object(map)) => map
            .iter()
            .map(|(text, id)| {
                let id = id.as_u64().ok_or_else(|| fail(format!("piece `{text}` has no number")))?;
                Ok(MergedPiece { id, text, score: 0.0 })
            })
            .collect(),
        Some(Json::Array(list)) => (0..)
            .zip(list)
            .map(|(id, entry)| match (entry[0].as_str(), entry[1].as_f64()) {
                (Some(text), Some(score)) => Ok(MergedPiece { id, text, score: score as f32 }),
                _ => Err(fail(format!("piece {entry} is not a text with a score"))),
            })
            .collect(),
        _ => Err(fail("`model.vocab` is neither an object nor a list")),
    }
}

/// Returns the text of the token for unknown input.
fn unknown(json: &TokenizerJson) -> Option<&str> {
    let by_id = || {
        let id = usize::try_from(json.model("unk_id")?.as_u64()?).ok()?;
        json.model("vocab")?.get(id)?.get(0)?.as_str()
    };
    json.model("unk_token").and_then(Json::as_str).or_else(by_id)
}

fn piece_type(text: &str, unknown: Option<&str>) -> PieceKind {
    let byte = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    // Byte fallback writes upper-case digits, and readers accept no other spelling.
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'A'..=b'F');
    if byte.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(is_digit)) {
        PieceKind::Byte
    } else if Some(text) == unknown {
        PieceKind::Unknown
    } else {
        PieceKind::Normal
    }
}

/// Derives scores from the ranks of pairs: the piece that is merged first has the highest score.
fn by_rank(pieces: &[&MergedPiece<'_>], merges: &[(&str, &str)], scores: &mut [f32], losses: &mut Vec<String>) {
    let mut ranks = HashMap::with_capacity(merges.len());
    let mut spans: HashMap<String, (usize, usize)> = HashMap::with_capacity(merges.len());
    for (rank, pair) in merges.iter().enumerate() {
        ranks.entry(*pair).or_insert(rank);
        let span = spans.entry([pair.0, pair.1].concat()).or_insert((rank, rank));
        span.1 = rank;
    }
    let span = |piece: &MergedPiece<'_>| spans.get(piece.text).copied().unwrap_or((usize::MAX, usize::MAX));
    let mut order: Vec<&MergedPiece<'_>> = pieces.to_vec();
    order.sort_by_key(|piece| (span(piece).0, piece.id));
    let mut by_text = HashMap::with_capacity(order.len());
    for (position, piece) in order.iter().enumerate() {
        scores[piece.id as usize] = -(position as f32);
        by_text.insert(piece.text, position);
    }
    let mixed =
        order.windows(2).filter(|pair| span(pair[1]).0 != usize::MAX && span(pair[0]).1 > span(pair[1]).0).count();
    let differ = |piece: &&&MergedPiece<'_>| {
        let by_pair = |left: &str, right: &str, _: &str| ranks.get(&(left, right)).copied();
        let by_piece = |_: &str, _: &str, both: &str| by_text.get(both).copied();
        cut(piece.text, by_pair) != cut(piece.text, by_piece)
    };
    let is_checked = |piece: &&&MergedPiece<'_>| piece.text.len() <= LONGEST_CHECKED;
    let unchecked = order.len() - order.iter().filter(is_checked).count();
    if unchecked > 0 {
        losses.push(format!(
            "{unchecked} pieces of more than {LONGEST_CHECKED} bytes may be merged in an order that scores cannot express"
        ));
    }
    let differ = order.iter().filter(is_checked).filter(differ).count();
    if mixed + differ > 0 {
        losses.push(format!(
            "{} of {} pieces are merged in an order that scores cannot express; rare texts may be tokenized differently",
            mixed + differ,
            order.len()
        ));
    }
}

/// Merges neighbours, lowest rank first and leftmost first, and returns the remaining boundaries.
/// `rank` gets the left part, the right part and both joined.
fn cut(text: &str, rank: impl Fn(&str, &str, &str) -> Option<usize>) -> Vec<usize> {
    let mut bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    loop {
        let ranked = bounds.windows(3).enumerate().filter_map(|(at, ends)| {
            let rank = rank(&text[ends[0]..ends[1]], &text[ends[1]..ends[2]], &text[ends[0]..ends[2]])?;
            Some((rank, at))
        });
        let Some((_, at)) = ranked.min() else { return bounds };
        bounds.remove(at + 1);
    }
}

/// Returns whether a space is put before text. Other steps that GGUF readers do not perform are
/// reported as losses.
fn add_space_prefix(json: &TokenizerJson, pieces: &[&MergedPiece<'_>], losses: &mut Vec<String>) -> bool {
    let mut prefix = false;
    for step in json.steps("normalizer") {
        match kind(step) {
            "Prepend" if step["prepend"] == SPACE => prefix = true,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == SPACE => {}
            other => losses.push(format!("the tokenizer's normalizer {other} is left out: GGUF readers have none")),
        }
    }
    for step in json.steps("pre_tokenizer") {
        match kind(step) {
            "Metaspace" => {
                prefix = metaspace_prefix(step, losses);
                let split = step.get("split").and_then(Json::as_bool).unwrap_or(true);
                if split && pieces.iter().any(|piece| piece.text.trim_start_matches(SPACE).contains(SPACE)) {
                    losses.push("the tokenizer splits text into words; GGUF readers will merge across them".to_owned());
                }
            }
            // All spaces were replaced before this step.
            "Split" if step["pattern"]["String"] == " " => {}
            other => losses.push(format!("the tokenizer's pre-tokenizer {other} is left out: GGUF readers have none")),
        }
    }
    prefix
}

fn metaspace_prefix(step: &Json, losses: &mut Vec<String>) -> bool {
    match step.get("prepend_scheme").and_then(Json::as_str) {
        Some("never") => false,
        Some("first") => {
            losses.push(
                "a space is put before the first text only; GGUF readers put one after special tokens too".to_owned(),
            );
            true
        }
        Some(_) => true,
        None => step.get("add_prefix_space").and_then(Json::as_bool).unwrap_or(true),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn losses_of(merges: &Json) -> (Vocabulary, Vec<String>) {
        let root = json!({
            "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 8, "content": "\u{2581}x", "special": false}, {"id": 10, "content": "<image>", "special": true}],
            "normalizer": {"type": "Prepend", "prepend": "\u{2581}"},
            "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "merges": merges,
                "vocab": {"<unk>": 0, "<0x0A>": 1, "a": 2, "b": 3, "c": 4, "ab": 5, "abc": 6, "bc": 7}}
        });
        let mut losses = Vec::new();
        let json = TokenizerJson::new(root).expect("a tokenizer");
        let vocabulary = vocabulary(&json, 10, &mut losses).expect("a vocabulary");
        (vocabulary, losses)
    }

    #[test]
    fn scores_follow_ranks() {
        let (vocabulary, losses) = losses_of(&json!([["a", "b"], ["ab", "c"], ["b", "c"]]));
        assert_eq!(losses, ["1 tokens beyond the 10 rows of the embedding are left out, `<image>` among them"]);
        let TokenizerModel::SentencePiece { scores, add_space_prefix } = vocabulary.model else {
            panic!("merged by scores")
        };
        assert!(add_space_prefix);
        assert!(scores[5] > scores[6] && scores[6] > scores[7] && scores[7] > scores[2], "{scores:?}");
        assert_eq!(vocabulary.tokens[8..], [" x".to_owned(), "[PAD9]".to_owned()]);
        let types = [PieceKind::Unknown, PieceKind::Byte, PieceKind::Normal];
        assert_eq!(vocabulary.types[..3], types);
        assert_eq!(vocabulary.types[8..], [PieceKind::UserDefined, PieceKind::Unused]);
    }

    #[test]
    fn bytes_have_one_spelling() {
        for (text, kind) in [("<0x0A>", PieceKind::Byte), ("<0x+A>", PieceKind::Normal), ("<0x0a>", PieceKind::Normal)]
        {
            assert_eq!(piece_type(text, None), kind, "{text}");
        }
    }

    #[test]
    fn tells_what_scores_cannot_say() {
        // `bc` is merged first, so ranks never reach `abc`; scores would merge `a` and `bc` to it.
        let (_, losses) = losses_of(&json!(["b c", "a b", "ab c"]));
        assert_eq!(losses.len(), 2, "{losses:?}");
        assert!(losses[0].contains("1 of 6 pieces"), "{losses:?}");
    }
}
