//! `WordPiece`: splits each word into the longest matching pieces, as in BERT.
//!
//! Source of the algorithm: `llama-vocab.cpp` of llama.cpp, where words can have any length, unlike
//! in BERT itself. The library's BERT normalizer and pre-tokenizer produce the words.

use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use super::pieces::{Pieces, SPACE};
use crate::Error;

/// Normalizer and options besides the pieces.
#[derive(Debug)]
pub(super) struct WordPiece {
    normalizer: BertNormalizer,
    unknown: Option<u32>,
}

impl WordPiece {
    pub(super) fn new(lowercase: bool, strip_accents: bool, unknown: Option<u32>) -> Self {
        Self { normalizer: BertNormalizer::new(true, true, Some(strip_accents), lowercase), unknown }
    }

    pub(super) fn cut(&self, pieces: &Pieces, text: &str, out: &mut Vec<u32>) -> Result<(), Error> {
        let mut normalized = NormalizedString::from(text);
        self.normalizer.normalize(&mut normalized).map_err(Error::tokenizer)?;
        let mut words = PreTokenizedString::from(normalized);
        BertPreTokenizer.pre_tokenize(&mut words).map_err(Error::tokenizer)?;
        for (word, _, _) in words.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            let before = out.len();
            if !longest(pieces, &format!("{SPACE}{word}"), out) {
                out.truncate(before);
                out.extend(self.unknown);
            }
        }
        Ok(())
    }
}

/// Splits a word into the longest pieces from its beginning; returns false if a rest matches no
/// piece.
fn longest(pieces: &Pieces, word: &str, out: &mut Vec<u32>) -> bool {
    let mut rest = word;
    while !rest.is_empty() {
        let most = rest.len().min(pieces.longest());
        let piece = (1..=most).rev().find_map(|length| Some((length, pieces.id(rest.get(..length)?)?)));
        let Some((length, id)) = piece else { return false };
        out.push(id);
        rest = &rest[length..];
    }
    true
}
