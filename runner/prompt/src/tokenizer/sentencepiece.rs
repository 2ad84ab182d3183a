//! `SentencePiece`'s BPE by scores, with byte fallback.
//!
//! Source of the algorithm: `bpe_model.cc` of `SentencePiece` and `llama-vocab.cpp` of llama.cpp.
//! It starts with single characters. As long as two adjacent symbols form a piece, it merges the
//! pair with the highest score, leftmost first. Symbols that are not pieces in the end become
//! bytes.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use vocabulary::PieceKind;

use super::pieces::{Pieces, byte_of};

/// Parameters of the algorithm besides the pieces.
#[derive(Debug)]
pub(super) struct SentencePiece {
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
}

impl SentencePiece {
    pub(super) fn new(pieces: &Pieces, unknown: Option<u32>) -> Self {
        let mut bytes = [None; 256];
        for (id, piece) in pieces.of_kind(PieceKind::Byte) {
            if let Some(byte) = byte_of(piece.text) {
                bytes[usize::from(byte)] = Some(id);
            }
        }
        Self { bytes, unknown }
    }

    /// Splits a text, whose spaces are `▁`, into pieces.
    pub(super) fn cut(&self, pieces: &Pieces, text: &str, out: &mut Vec<u32>) {
        Merger { own: self, pieces }.merge(text, out);
    }
}

struct Merger<'a> {
    own: &'a SentencePiece,
    pieces: &'a Pieces,
}

impl Merger<'_> {
    /// Returns the piece with this text, if text can become it: control pieces are never merged
    /// from text.
    fn text_id(&self, text: &str) -> Option<u32> {
        let is_text = |id: &u32| {
            let kind = self.pieces.get(*id).map(|piece| piece.kind);
            matches!(kind, Some(PieceKind::Normal | PieceKind::UserDefined))
        };
        self.pieces.id(text).filter(is_text)
    }

    fn merge(&self, text: &str, out: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .map(|(at, c)| Symbol { start: at, end: at + c.len_utf8(), before: None, after: None })
            .collect();
        let count = symbols.len();
        for (position, symbol) in symbols.iter_mut().enumerate() {
            symbol.before = position.checked_sub(1);
            symbol.after = Some(position + 1).filter(|after| *after < count);
        }
        let mut queue = BinaryHeap::new();
        for right in 1..count {
            self.propose(text, &symbols, right - 1, right, &mut queue);
        }
        while let Some(Merge { left, right, length, .. }) = queue.pop() {
            // Either symbol can have been merged in the meantime.
            let whole = symbols[left].end > symbols[left].start && symbols[right].end > symbols[right].start;
            if !whole || symbols[left].after != Some(right) || symbols[right].end - symbols[left].start != length {
                continue;
            }
            symbols[left].end = symbols[right].end;
            symbols[left].after = symbols[right].after;
            symbols[right].end = symbols[right].start;
            if let Some(after) = symbols[left].after {
                symbols[after].before = Some(left);
                self.propose(text, &symbols, left, after, &mut queue);
            }
            if let Some(before) = symbols[left].before {
                self.propose(text, &symbols, before, left, &mut queue);
            }
        }
        let mut next = (count > 0).then_some(0);
        while let Some(position) = next {
            self.emit(&text[symbols[position].start..symbols[position].end], out);
            next = symbols[position].after;
        }
    }

    fn propose(&self, text: &str, symbols: &[Symbol], left: usize, right: usize, queue: &mut BinaryHeap<Merge>) {
        let (start, end) = (symbols[left].start, symbols[right].end);
        let Some(id) = self.text_id(&text[start..end]) else { return };
        let score = self.pieces.get(id).map_or(0.0, |piece| piece.score);
        queue.push(Merge { score, left, right, length: end - start });
    }

    fn emit(&self, text: &str, out: &mut Vec<u32>) {
        if let Some(id) = self.text_id(text) {
            out.push(id);
            return;
        }
        for byte in text.bytes() {
            out.extend(self.own.bytes[usize::from(byte)].or(self.own.unknown));
        }
    }
}

struct Symbol {
    start: usize,
    end: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// Two adjacent symbols that form a piece.
struct Merge {
    score: f32,
    left: usize,
    right: usize,
    length: usize,
}

impl Ord for Merge {
    /// Orders by the highest score, then the leftmost position.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Merge {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Merge {}
