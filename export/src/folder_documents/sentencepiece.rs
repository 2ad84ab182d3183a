//! `SentencePiece` vocabularies, which merge by scores, expressed as BPE with byte fallback.
//!
//! `SentencePiece` may merge a piece from any two pieces that concatenate to it, and merges pieces
//! with a higher score first. So every such pair becomes a BPE merge, in the order of the scores of
//! the merged pieces. transformers' converter of `SentencePiece` models does the same.

use std::collections::HashSet;

use serde_json::{Map, Value as Json, json};
use vocabulary::{PieceKind, Vocabulary, VocabularyEntry};

use super::tokenizer_parts::Parts;

/// Character that represents a space in pieces.
const SPACE: &str = "\u{2581}";
/// Longest piece, in bytes, for which merges are generated. No real piece is as long, and each
/// position to cut a piece costs time in proportion to its length.
const LONGEST_MERGED: usize = 512;

/// Returns the parts of a tokenizer that merges by scores.
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

/// Returns the normalizer that replaces spaces by `▁`.
pub(super) fn spaces_replaced() -> Json {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
}

/// Returns the decoder that joins pieces with `▁` and byte pieces into text. If `prefixed`, it
/// strips the space that the normalizer put before the text.
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

/// Returns every pair that forms a piece, in descending order of the piece's score.
fn merges<'a>(tokens: &'a [VocabularyEntry], losses: &mut Vec<String>) -> Vec<(&'a str, &'a str)> {
    let normal = || tokens.iter().filter(|token| token.kind == PieceKind::Normal && !token.text.is_empty());
    let texts: HashSet<&str> = normal().map(|token| token.text.as_str()).collect();
    let mut pieces: Vec<&VocabularyEntry> = normal().filter(|token| token.text.chars().nth(1).is_some()).collect();
    let all = pieces.len();
    pieces.retain(|piece| piece.text.len() <= LONGEST_MERGED);
    if pieces.len() < all {
        let long = all - pieces.len();
        losses.push(format!("{long} pieces of more than {LONGEST_MERGED} bytes are never merged by tokenizer.json"));
    }
    // The sort is stable: among equal scores, the smaller token id comes first.
    pieces.sort_by(|a, b| b.score.total_cmp(&a.score));
    let equal = pieces.windows(2).filter(|pair| pair[0].score.total_cmp(&pair[1].score).is_eq()).count();
    if equal > 0 {
        losses.push(format!(
            "{equal} pieces have the score of another; tokenizer.json merges those in the order of their numbers"
        ));
    }
    let mut merges = Vec::with_capacity(2 * pieces.len());
    for piece in pieces {
        // Longest left part first.
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
        let token = |text: &str, score, kind| VocabularyEntry { text: text.to_owned(), score, kind };
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
