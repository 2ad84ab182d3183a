//! Two texts as one sequence, as models that compare them read it.
//!
//! What stands around the texts is what the post-processor of a `tokenizer.json` says of pairs. GGUF files say less: the first text
//! is as it is alone, then comes the separator where the file adds one, then the second text with what ends it (llama.cpp,
//! `format_prompt_rerank`).

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use super::library::Library;
use super::{Around, Kind, Special, Tokenizer, lock};
use crate::Error;

/// Two texts as one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The tokens of both, and what stands around them.
    pub tokens: Vec<u32>,
    /// Where tokens of the second type begin; none where all of them are of the first.
    pub second: Option<usize>,
    /// Where the tokens of each text are.
    texts: [Range<usize>; 2],
}

impl Tokenizer {
    /// Cuts two texts into tokens, for one sequence.
    ///
    /// # Errors
    /// [`Error::TooLong`] beyond [`MAX_TEXT`](crate::MAX_TEXT) bytes.
    pub fn pair(&self, texts: [&str; 2]) -> Result<Pair, Error> {
        let around = match &self.kind {
            Kind::Library { tokenizer, around } => {
                let tokenizer = lock_for_text(tokenizer);
                if tokenizer.get_post_processor().is_some() {
                    return processed(&tokenizer, texts);
                }
                *around
            }
            Kind::Own(tokenizer) => tokenizer.around(),
        };
        let plain = |text| self.encode(text, Special { add: false, parse: false });
        Ok(around.both([plain(texts[0])?, plain(texts[1])?]))
    }
}

fn lock_for_text(tokenizer: &Mutex<Library>) -> MutexGuard<'_, Library> {
    let mut tokenizer = lock(tokenizer);
    // Special tokens in a text are text.
    tokenizer.set_encode_special_tokens(true);
    tokenizer
}

/// A pair with what the library's post-processor puts around it.
fn processed(tokenizer: &Library, texts: [&str; 2]) -> Result<Pair, Error> {
    if let Some(long) = texts.iter().map(|text| text.len()).find(|length| *length > crate::MAX_TEXT) {
        return Err(Error::TooLong(long));
    }
    let both = tokenizer.encode((texts[0], texts[1]), true).map_err(Error::tokenizer)?;
    let tokens = both.get_ids().to_vec();
    let of = both.get_sequence_ids();
    let range = |text| {
        let is_own = |of: &Option<usize>| *of == Some(text);
        let begin = of.iter().position(is_own).unwrap_or(0);
        begin..of.iter().rposition(is_own).map_or(begin, |last| last + 1)
    };
    let texts = [range(0), range(1)];
    let second = both.get_type_ids().iter().position(|kind| *kind != 0);
    Ok(Pair { tokens, second, texts })
}

impl Around {
    fn both(self, [first, second]: [Vec<u32>; 2]) -> Pair {
        let mut tokens = Vec::from_iter(self.before);
        let mut add = |text: Vec<u32>, between: Option<u32>| {
            let begin = tokens.len();
            tokens.extend(text);
            let range = begin..tokens.len();
            tokens.extend(self.after.into_iter().chain(between));
            range
        };
        let texts = [add(first, self.between), add(second, None)];
        Pair { second: Some(texts[1].start), texts, tokens }
    }
}

impl Pair {
    /// Drops what does not fit into `all` tokens, or into `second` of the second text: first of the longer text, then of both. Says how
    /// many tokens were dropped.
    pub fn truncate(&mut self, all: usize, second: usize) -> usize {
        let lengths = [self.texts[0].len(), self.texts[1].len()];
        let others = self.tokens.len() - lengths[0] - lengths[1];
        let left = longest_first([lengths[0], lengths[1].min(second)], all.saturating_sub(others));
        // From the back, so that places stay.
        for (text, left) in [1, 0].into_iter().zip([left[1], left[0]]) {
            let Range { start, end } = self.texts[text].clone();
            let dropped = end - start - left;
            self.tokens.drain(start + left..end);
            self.texts[text].end -= dropped;
            self.second = self.second.map(|place| if place >= end { place - dropped } else { place });
            if text == 0 {
                self.texts[1] = self.texts[1].start - dropped..self.texts[1].end - dropped;
            }
        }
        lengths[0] + lengths[1] - left[0] - left[1]
    }
}

/// How many tokens are left of two texts, as the library cuts them (`truncate_encodings`, `LongestFirst`): the longer one to the length
/// of the other, then both to the half.
fn longest_first([first, second]: [usize; 2], all: usize) -> [usize; 2] {
    let [shorter, longer] = [first.min(second), first.max(second)];
    let [shorter, longer] = if shorter + longer <= all {
        [shorter, longer]
    } else if 2 * shorter <= all {
        [shorter, all - shorter]
    } else {
        [all / 2, all - all / 2]
    };
    if first <= second { [shorter, longer] } else { [longer, shorter] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocabulary::{Piece, PieceKind, Vocabulary, VocabularyKind};

    #[test]
    fn the_longer_text_is_cut_first() {
        for (lengths, all, expect) in [
            ([3, 4], 7, [3, 4]),
            ([3, 9], 8, [3, 5]),
            ([9, 3], 8, [5, 3]),
            ([4, 9], 8, [4, 4]),
            ([7, 9], 9, [4, 5]),
            ([9, 7], 9, [5, 4]),
            ([9, 9], 0, [0, 0]),
            ([5, 1], 3, [2, 1]),
        ] {
            assert_eq!(longest_first(lengths, all), expect, "{lengths:?} in {all}");
        }
    }

    #[test]
    fn vocabularies_of_files_part_two_texts() {
        let pieces = ["[UNK]", "[CLS]", "[SEP]", "\u{2581}a", "\u{2581}b"];
        let pieces = pieces.iter().map(|text| Piece {
            text: (*text).to_owned(),
            score: 0.0,
            kind: if text.starts_with('[') { PieceKind::Control } else { PieceKind::Normal },
        });
        let kind = VocabularyKind::WordPiece { lowercase: true, strip_accents: true };
        let own = Vocabulary {
            unknown: Some(0),
            bos: Some(1),
            separator: Some(2),
            ..Vocabulary::new(kind, pieces.collect())
        };
        let pair = |own: Vocabulary, texts, all, most| {
            let tokenizer = Tokenizer::from_vocabulary(own).expect("a tokenizer");
            let mut pair = tokenizer.pair(texts).expect("a pair");
            let dropped = pair.truncate(all, most);
            (pair.tokens, pair.second, dropped)
        };
        let texts = ["a", "b b a"];
        assert_eq!(pair(own.clone(), texts, 7, 9), (vec![1, 3, 2, 4, 4, 3, 2], Some(3), 0));
        assert_eq!(pair(own.clone(), texts, 5, 9), (vec![1, 3, 2, 4, 2], Some(3), 2));
        assert_eq!(pair(own.clone(), texts, 9, 2), (vec![1, 3, 2, 4, 4, 2], Some(3), 1));
        assert_eq!(pair(own.clone(), ["a b a", "b"], 5, 9), (vec![1, 3, 2, 4, 2], Some(3), 2));
        let parted = Vocabulary { add_separator: true, ..own };
        assert_eq!(pair(parted, ["a b", "b b a"], 7, 9), (vec![1, 3, 2, 2, 4, 4, 2], Some(4), 2));
    }
}
