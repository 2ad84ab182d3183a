//! Unigram: the most likely segmentation of a text by scores, as in `SentencePiece`.
//!
//! Sources: `normalizer.cc` and `unigram_model.cc` of `SentencePiece`, and `llama-vocab.cpp` of
//! llama.cpp. Texts between special tokens are normalized separately. User-defined pieces have the
//! score 0. The score of an unknown character is that of the least likely piece minus 10.

use vocabulary::PieceKind;

use super::pieces::{Pieces, SPACE};
use crate::Error;

/// Difference between the lowest score of a piece and the score of an unknown character.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Maximum bytes of a character's replacement; limits time and memory.
const MAX_REPLACEMENT: usize = 1024;

/// Parameters of the algorithm besides the pieces.
#[derive(Debug)]
pub(super) struct Unigram {
    map: CharacterMap,
    merge_spaces: bool,
    add_space_prefix: bool,
    unknown: Option<u32>,
    unknown_score: f64,
}

impl Unigram {
    pub(super) fn new(
        pieces: &Pieces,
        map: &[u8],
        merge_spaces: bool,
        add_space_prefix: bool,
        unknown: Option<u32>,
    ) -> Result<Self, Error> {
        let normal = pieces.of_kind(PieceKind::Normal);
        let least = normal.map(|(_, piece)| f64::from(piece.score)).fold(f64::from(f32::MAX), f64::min);
        let map = CharacterMap::new(map)?;
        Ok(Self { map, merge_spaces, add_space_prefix, unknown, unknown_score: least - UNKNOWN_PENALTY })
    }

    pub(super) fn cut(&self, pieces: &Pieces, text: &str, out: &mut Vec<u32>) -> Result<(), Error> {
        let text = self.normalized(pieces, text)?;
        // For each position, the last piece of the best path to it: its start, its id, and the
        // score of the path.
        let mut ways: Vec<Option<(usize, Option<u32>, f64)>> = vec![None; text.len() + 1];
        ways[0] = Some((0, None, 0.0));
        for (start, c) in text.char_indices() {
            let Some((_, _, so_far)) = ways[start] else { continue };
            let most = (text.len() - start).min(pieces.longest());
            let mut has_own = false;
            let mut improve = |end: usize, id: Option<u32>, score: f64| {
                let way = &mut ways[end];
                if way.is_none_or(|(_, _, best)| so_far + score > best) {
                    *way = Some((start, id, so_far + score));
                }
            };
            for end in (start + 1..=start + most).filter(|end| text.is_char_boundary(*end)) {
                let Some(id) = pieces.id(&text[start..end]) else { continue };
                let Some(score) = score(pieces, id) else { continue };
                has_own |= end == start + c.len_utf8();
                improve(end, Some(id), score);
            }
            if !has_own {
                improve(start + c.len_utf8(), None, self.unknown_score);
            }
        }
        let (mut end, mut ids) = (text.len(), Vec::new());
        while let Some((start, id, _)) = ways[end].filter(|_| end > 0) {
            // A run of unknown characters is one token.
            if id.is_some() || ids.last() != Some(&None) {
                ids.push(id);
            }
            end = start;
        }
        out.extend(ids.into_iter().rev().filter_map(|id| id.or(self.unknown)));
        Ok(())
    }

    /// Replaces characters by the map, and spaces by `▁`, which is also put before each text.
    fn normalized(&self, pieces: &Pieces, text: &str) -> Result<String, Error> {
        let mut out = String::with_capacity(text.len() * 3);
        let (mut at, mut in_word, mut prefixed) = (0, false, false);
        while at < text.len() {
            let (becomes, consumed) = self.map.next(pieces, &text[at..])?;
            for c in becomes.chars() {
                if c == ' ' {
                    in_word = false;
                    if !self.merge_spaces {
                        out.push_str(SPACE);
                    }
                    continue;
                }
                if !in_word {
                    in_word = true;
                    if self.merge_spaces || self.add_space_prefix && !prefixed {
                        out.push_str(SPACE);
                        prefixed = true;
                    }
                }
                out.push(c);
            }
            at += consumed;
        }
        Ok(out)
    }
}

/// Returns the score of a piece that text can become.
fn score(pieces: &Pieces, id: u32) -> Option<f64> {
    let piece = pieces.get(id)?;
    match piece.kind {
        PieceKind::UserDefined => Some(0.0),
        PieceKind::Normal | PieceKind::Unused => Some(f64::from(piece.score)),
        _ => None,
    }
}

/// `SentencePiece`'s table of character replacements (`precompiled_charsmap`): the length in bytes
/// of a double array of 32-bit units, the array, and zero-terminated texts. A unit has the offset
/// of its children in bits 10 to 30 (times 256 if bit 9 is set). Bit 8 marks the end of a key, and
/// bits 0 to 7 contain the byte that leads to the unit. A unit that holds a value has bit 31 set.
#[derive(Debug)]
struct CharacterMap {
    units: Vec<u32>,
    texts: Vec<u8>,
}

impl CharacterMap {
    fn new(raw: &[u8]) -> Result<Self, Error> {
        let broken = || Error::tokenizer("its table of characters (`precompiled_charsmap`) is cut off");
        if raw.is_empty() {
            return Ok(Self { units: Vec::new(), texts: Vec::new() });
        }
        let (size, rest) = raw.split_first_chunk::<4>().ok_or_else(broken)?;
        let (units, texts) = rest.split_at_checked(u32::from_le_bytes(*size) as usize).ok_or_else(broken)?;
        if texts.is_empty() {
            return Err(broken());
        }
        let units = units.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        Ok(Self { units, texts: texts.to_vec() })
    }

    /// Returns the replacement of the beginning of a text, and its length in bytes. A user-defined
    /// piece is kept, else the longest key of the table is replaced, else a character is kept.
    fn next<'t>(&'t self, pieces: &Pieces, text: &'t str) -> Result<(&'t str, usize), Error> {
        if let Some(length) = user_defined(pieces, text) {
            return Ok((&text[..length], length));
        }
        if let Some((length, value)) = self.longest(text.as_bytes()) {
            let broken = || Error::tokenizer("its table of characters (`precompiled_charsmap`) is damaged");
            let tail = self.texts.get(value..).ok_or_else(broken)?;
            let end = tail.iter().take(MAX_REPLACEMENT + 1).position(|byte| *byte == 0).ok_or_else(broken)?;
            let becomes = std::str::from_utf8(&tail[..end]).map_err(|_| broken())?;
            if text.is_char_boundary(length) {
                return Ok((becomes, length));
            }
        }
        let length = text.chars().next().map_or(0, char::len_utf8);
        Ok((&text[..length], length))
    }

    /// Returns the longest key that the text begins with: its length, and the position of its
    /// replacement.
    fn longest(&self, text: &[u8]) -> Option<(usize, usize)> {
        let offset = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let mut node = offset(*self.units.first()?);
        let mut found = None;
        for (at, byte) in text.iter().enumerate().take_while(|(_, byte)| **byte != 0) {
            node ^= u32::from(*byte);
            let Some(unit) = self.units.get(node as usize) else { break };
            if unit & (1 << 31 | 0xff) != u32::from(*byte) {
                break;
            }
            node ^= offset(*unit);
            if unit >> 8 & 1 == 1 {
                let value = self.units.get(node as usize)? & !(1 << 31);
                found = Some((at + 1, value as usize));
            }
        }
        found
    }
}

/// Returns the length of the longest user-defined piece that a text begins with.
fn user_defined(pieces: &Pieces, text: &str) -> Option<usize> {
    pieces.longest_user_defined().and_then(|most| {
        (1..=most.min(text.len())).rev().find(|length| {
            let id = text.get(..*length).and_then(|text| pieces.id(text));
            id.and_then(|id| pieces.get(id)).is_some_and(|piece| piece.kind == PieceKind::UserDefined)
        })
    })
}
