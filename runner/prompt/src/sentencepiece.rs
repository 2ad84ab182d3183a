//! `SentencePiece`'s BPE by scores, with byte fallback.
//!
//! Source of the algorithm: `bpe_model.cc` of `SentencePiece` and `llama-vocab.cpp` of llama.cpp: begin with single
//! characters; as long as two neighbours make a piece, merge those with the highest score, leftmost first; what is no
//! piece in the end becomes bytes.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use vocabulary::{Piece, PieceKind, Vocabulary};

use crate::Special;

/// What stands for a space in pieces.
const SPACE: &str = "\u{2581}";

#[derive(Debug)]
pub(crate) struct SentencePiece {
    ids: HashMap<String, u32>,
    pieces: Vec<Piece>,
    bytes: [Option<u32>; 256],
    /// Found in text before anything else: control pieces only where they are asked for.
    atoms: HashMap<String, (u32, PieceKind)>,
    /// The lengths in bytes that atoms have, longest first.
    atom_lengths: Vec<usize>,
    unknown: Option<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_space_prefix: bool,
}

impl SentencePiece {
    pub(crate) fn new(vocabulary: Vocabulary) -> Self {
        let mut ids = HashMap::with_capacity(vocabulary.pieces.len());
        let mut bytes = [None; 256];
        let mut atoms = HashMap::new();
        for (id, piece) in (0..).zip(&vocabulary.pieces) {
            match piece.kind {
                PieceKind::Byte => {
                    if let Some(byte) = byte_of(&piece.text) {
                        bytes[usize::from(byte)] = Some(id);
                    }
                }
                PieceKind::Control | PieceKind::UserDefined | PieceKind::Unknown if !piece.text.is_empty() => {
                    atoms.entry(piece.text.clone()).or_insert((id, piece.kind));
                }
                _ => {}
            }
            // Where a text is there twice the first id counts.
            ids.entry(piece.text.clone()).or_insert(id);
        }
        let mut atom_lengths: Vec<usize> = atoms.keys().map(String::len).collect();
        atom_lengths.sort_unstable_by(|a, b| b.cmp(a));
        atom_lengths.dedup();
        Self {
            ids,
            bytes,
            atoms,
            atom_lengths,
            unknown: vocabulary.unknown,
            bos: vocabulary.bos.filter(|_| vocabulary.add_bos),
            eos: vocabulary.eos.filter(|_| vocabulary.add_eos),
            add_space_prefix: vocabulary.add_space_prefix,
            pieces: vocabulary.pieces,
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    pub(crate) fn piece(&self, id: u32) -> Option<&str> {
        self.pieces.get(id as usize).map(|piece| piece.text.as_str())
    }

    pub(crate) fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut out = Vec::new();
        if special.add {
            out.extend(self.bos);
        }
        let mut prefix = self.add_space_prefix;
        for fragment in self.fragments(text, special.parse) {
            match fragment {
                Fragment::Atom(id) => {
                    out.push(id);
                    prefix = self.add_space_prefix;
                }
                Fragment::Text(text) => {
                    let space = if prefix { SPACE } else { "" };
                    self.merge(&format!("{space}{}", text.replace(' ', SPACE)), &mut out);
                    prefix = false;
                }
            }
        }
        if special.add {
            out.extend(self.eos);
        }
        out
    }

    /// Cuts out the pieces that are found in text before anything else is.
    fn fragments<'t>(&self, text: &'t str, parse_control: bool) -> Vec<Fragment<'t>> {
        let mut fragments = Vec::new();
        let (mut start, mut at) = (0, 0);
        while at < text.len() {
            match self.atom_at(&text[at..], parse_control) {
                Some((length, id)) => {
                    if at > start {
                        fragments.push(Fragment::Text(&text[start..at]));
                    }
                    fragments.push(Fragment::Atom(id));
                    at += length;
                    start = at;
                }
                None => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        if text.len() > start {
            fragments.push(Fragment::Text(&text[start..]));
        }
        fragments
    }

    /// The longest atom that a text begins with: its length in bytes and its id.
    fn atom_at(&self, text: &str, parse_control: bool) -> Option<(usize, u32)> {
        self.atom_lengths.iter().find_map(|length| {
            let (id, kind) = self.atoms.get(text.get(..*length)?)?;
            (*kind == PieceKind::UserDefined || parse_control).then_some((*length, *id))
        })
    }

    /// The piece of that text that text may become: no control piece is ever merged from text.
    fn text_id(&self, text: &str) -> Option<u32> {
        let kind = |id: u32| self.pieces[id as usize].kind;
        self.id(text).filter(|id| matches!(kind(*id), PieceKind::Normal | PieceKind::UserDefined))
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
            // Either may have been merged with another in the meantime.
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
        queue.push(Merge { score: self.pieces[id as usize].score, left, right, length: end - start });
    }

    fn emit(&self, text: &str, out: &mut Vec<u32>) {
        if let Some(id) = self.text_id(text) {
            out.push(id);
            return;
        }
        for byte in text.bytes() {
            out.extend(self.bytes[usize::from(byte)].or(self.unknown));
        }
    }

    /// The bytes of a token. Control pieces have none unless they are wanted.
    pub(crate) fn decode(&self, id: u32, with_control: bool, out: &mut Vec<u8>) {
        let Some(piece) = self.pieces.get(id as usize) else { return };
        match piece.kind {
            PieceKind::Byte => out.extend(byte_of(&piece.text)),
            PieceKind::Control | PieceKind::Unknown if !with_control => {}
            PieceKind::Control | PieceKind::Unknown => out.extend_from_slice(piece.text.as_bytes()),
            _ => out.extend_from_slice(piece.text.replace(SPACE, " ").as_bytes()),
        }
    }

    /// Whether the first space of a text is not the text's own.
    pub(crate) fn adds_space_prefix(&self) -> bool {
        self.add_space_prefix
    }
}

/// The byte of a piece `<0xXX>`.
fn byte_of(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

enum Fragment<'t> {
    Atom(u32),
    Text(&'t str),
}

struct Symbol {
    start: usize,
    end: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// Two neighbours that make a piece.
struct Merge {
    score: f32,
    left: usize,
    right: usize,
    length: usize,
}

impl Ord for Merge {
    /// The highest score first, then the leftmost.
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

#[cfg(test)]
mod tests {
    use super::*;
    use vocabulary::VocabularyKind;

    fn tokenizer() -> SentencePiece {
        let piece = |text: &str, score: f32, kind| Piece { text: text.to_owned(), score, kind };
        let mut pieces = vec![
            piece("<unk>", 0.0, PieceKind::Unknown),
            piece("<s>", 0.0, PieceKind::Control),
            piece("[img]", 0.0, PieceKind::UserDefined),
        ];
        for (text, score) in
            [("\u{2581}", -1.0), ("a", -2.0), ("b", -3.0), ("ab", -5.0), ("bc", -4.0), ("c", -6.0), ("\u{2581}a", -7.0)]
        {
            pieces.push(piece(text, score, PieceKind::Normal));
        }
        pieces.extend((0..=255).map(|byte: u8| piece(&format!("<0x{byte:02X}>"), 0.0, PieceKind::Byte)));
        SentencePiece::new(Vocabulary {
            unknown: Some(0),
            bos: Some(1),
            add_bos: true,
            add_space_prefix: true,
            ..Vocabulary::new(VocabularyKind::SentencePiece, pieces)
        })
    }

    #[test]
    fn merges_by_score() {
        let tokenizer = tokenizer();
        let plain = Special { add: false, parse: false };
        let texts = |ids: &[u32]| ids.iter().map(|id| tokenizer.piece(*id).expect("id").to_owned()).collect::<Vec<_>>();
        assert_eq!(texts(&tokenizer.encode("abc", plain)), ["\u{2581}a", "bc"], "bc has the better score than ab");
        assert_eq!(texts(&tokenizer.encode("é", plain)), ["\u{2581}", "<0xC3>", "<0xA9>"]);
        assert_eq!(texts(&tokenizer.encode("<s>", Special { add: true, parse: true })), ["<s>", "<s>"]);
        assert_eq!(texts(&tokenizer.encode("b[img]b", plain)), ["\u{2581}", "b", "[img]", "\u{2581}", "b"]);
        assert!(tokenizer.encode("", plain).is_empty());
        assert!(!tokenizer.encode("<s>", plain).contains(&1), "text never becomes a control piece");
    }
}
