//! Merging by scores, said as BPE with byte fallback.
//!
//! A piece may be merged from any two pieces that make it, earlier the higher its score. So every such pair becomes a
//! merge, in the order of the scores of what they make: as transformers' converter of `SentencePiece` models does.

use std::collections::HashSet;

use serde_json::{Map, Value as Json, json};
use vocabulary::{Piece, PieceKind, Vocabulary};

use super::tokenizer::Parts;

/// What stands for a space in pieces.
const SPACE: &str = "\u{2581}";
/// Longer pieces are not merged, in bytes; no real ones are so long, and each place to cut them costs their length.
const LONGEST_MERGED: usize = 512;

/// The parts of a tokenizer that merges by scores.
pub(super) fn parts(vocabulary: &Vocabulary, losses: &mut Vec<String>) -> Parts {
    let unknown = vocabulary.unknown.and_then(|id| vocabulary.text(id));
    let merges = merges(&vocabulary.pieces, losses);
    let mut model = Map::new();
    model.insert("unk_token".to_owned(), unknown.into());
    model.insert("fuse_unk".to_owned(), true.into());
    model.insert("byte_fallback".to_owned(), true.into());
    model.insert("merges".to_owned(), merges.into_iter().map(|(left, right)| json!([left, right])).collect());
    let prefixed = vocabulary.add_space_prefix;
    let normalizer = if prefixed {
        let prepend = json!({"type": "Prepend", "prepend": SPACE});
        json!({"type": "Sequence", "normalizers": [prepend, spaces_replaced()]})
    } else {
        spaces_replaced()
    };
    Parts { normalizer, pre_tokenizer: Json::Null, decoder: decoder(prefixed), model }
}

/// What puts `▁` in the place of spaces.
pub(super) fn spaces_replaced() -> Json {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
}

/// What makes text of pieces with `▁` and of bytes; the first space may not be the text's own.
pub(super) fn decoder(prefixed: bool) -> Json {
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefixed {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": decoders})
}

/// Every pair that makes a piece, the best piece first.
fn merges<'a>(tokens: &'a [Piece], losses: &mut Vec<String>) -> Vec<(&'a str, &'a str)> {
    let normal = || tokens.iter().filter(|token| token.kind == PieceKind::Normal && !token.text.is_empty());
    let texts: HashSet<&str> = normal().map(|token| token.text.as_str()).collect();
    let mut pieces: Vec<&Piece> = normal().filter(|token| token.text.chars().nth(1).is_some()).collect();
    let all = pieces.len();
    pieces.retain(|piece| piece.text.len() <= LONGEST_MERGED);
    if pieces.len() < all {
        let long = all - pieces.len();
        losses.push(format!("{long} pieces of more than {LONGEST_MERGED} bytes are never merged by tokenizer.json"));
    }
    // Stable: of equal scores the smaller number comes first.
    pieces.sort_by(|a, b| b.score.total_cmp(&a.score));
    let equal = pieces.windows(2).filter(|pair| pair[0].score.total_cmp(&pair[1].score).is_eq()).count();
    if equal > 0 {
        losses.push(format!(
            "{equal} pieces have the score of another; tokenizer.json merges those in the order of their numbers"
        ));
    }
    let mut merges = Vec::with_capacity(2 * pieces.len());
    for piece in pieces {
        // The longest left part first.
        let cuts = piece.text.char_indices().skip(1).map(|(at, _)| piece.text.split_at(at));
        let pairs: Vec<_> = cuts.filter(|(left, right)| texts.contains(left) && texts.contains(right)).collect();
        merges.extend(pairs.into_iter().rev());
    }
    merges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_follow_scores() {
        let token = |text: &str, score, kind| Piece { text: text.to_owned(), score, kind };
        let mut tokens = vec![
            token("a", -10.0, PieceKind::Normal),
            token("b", -11.0, PieceKind::Normal),
            token("ab", -2.0, PieceKind::Normal),
            token("aab", -1.0, PieceKind::Normal),
            token("aa", -3.0, PieceKind::Normal),
            token("bb", -1000.0, PieceKind::UserDefined),
        ];
        let mut losses = Vec::new();
        assert_eq!(merges(&tokens, &mut losses), [("aa", "b"), ("a", "ab"), ("a", "b"), ("a", "a")]);
        assert!(losses.is_empty(), "{losses:?}");
        tokens[4].score = -2.0;
        merges(&tokens, &mut losses);
        assert_eq!(losses.len(), 1);
        let long = "a".repeat(LONGEST_MERGED + 1);
        tokens[4] = token(&long, -2.5, PieceKind::Normal);
        tokens.push(token(&long[1..], -2.75, PieceKind::Normal));
        assert_eq!(merges(&tokens, &mut losses), [("a", "ab"), ("a", "b")]);
        assert_eq!(losses.len(), 2, "{losses:?}");
    }
}
