//! The pieces of a GGUF vocabulary: by id, by text, and pieces that are matched in text before any
//! other.

use std::collections::HashMap;

use vocabulary::{PieceKind, Token, TokenTable};

use crate::Error;

/// The character for a space in pieces.
pub(super) const SPACE: &str = "\u{2581}";

/// Maximum length of a piece in bytes; real pieces are shorter.
const MAX_PIECE: usize = 1024;

/// The pieces of a vocabulary.
#[derive(Debug)]
pub(super) struct Pieces {
    table: TokenTable,
    /// Length in bytes of the longest piece that text can become.
    longest: usize,
    longest_user_defined: Option<usize>,
    /// Pieces that are matched in text before any other; control pieces only on request.
    atoms: HashMap<String, (u32, PieceKind)>,
    /// The distinct lengths of atoms in bytes.
    atom_lengths: Vec<usize>,
}

/// A fragment of a text.
pub(super) enum Fragment<'t> {
    Atom(u32),
    Text(&'t str),
}

/// A match of an atom in a text.
struct Match {
    start: usize,
    length: usize,
    id: u32,
}

impl Pieces {
    /// # Errors
    /// A piece is longer than [`MAX_PIECE`]: each position of a text is compared with all lengths
    /// of pieces.
    pub(super) fn new(table: TokenTable) -> Result<Self, Error> {
        if let Some(long) = table.ids().find(|id| table.length(*id) > MAX_PIECE) {
            let length = table.length(long);
            return Err(Error::tokenizer(format!("token {long} has {length} bytes, at most {MAX_PIECE} are expected")));
        }
        let mut atoms = HashMap::new();
        let mut longest = 0;
        for (id, kind) in table.ids().filter_map(|id| Some((id, table.kind(id)?))) {
            if !matches!(kind, PieceKind::Control | PieceKind::Unknown | PieceKind::Byte) {
                longest = longest.max(table.length(id));
            }
            if matches!(kind, PieceKind::Control | PieceKind::UserDefined | PieceKind::Unknown)
                && let Some(token) = table.get(id).filter(|token| !token.text.is_empty())
            {
                atoms.entry(token.text.to_owned()).or_insert((id, kind));
            }
        }
        let mut atom_lengths: Vec<usize> = atoms.keys().map(String::len).collect();
        atom_lengths.sort_unstable();
        atom_lengths.dedup();
        let defined = atoms.iter().filter(|(_, (_, kind))| *kind == PieceKind::UserDefined);
        let longest_user_defined = defined.map(|(text, _)| text.len()).max();
        Ok(Self { table, longest, longest_user_defined, atoms, atom_lengths })
    }

    pub(super) fn len(&self) -> usize {
        self.table.len() as usize
    }

    /// Returns the length in bytes of the longest piece that text can become.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the length in bytes of the longest user-defined piece.
    pub(super) fn longest_user_defined(&self) -> Option<usize> {
        self.longest_user_defined
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.table.id(text)
    }

    pub(super) fn get(&self, id: u32) -> Option<Token<'_>> {
        self.table.get(id)
    }

    /// Returns the pieces of a kind, with their ids.
    pub(super) fn of_kind(&self, kind: PieceKind) -> impl Iterator<Item = (u32, Token<'_>)> {
        let own = move |id: &u32| self.table.kind(*id) == Some(kind);
        self.table.ids().filter(own).filter_map(|id| Some((id, self.table.get(id)?)))
    }

    /// Extracts the atoms of a text: longer ones before shorter ones, at any position.
    pub(super) fn fragments<'t>(&self, text: &'t str, parse_control: bool) -> Vec<Fragment<'t>> {
        let mut found: Vec<Match> =
            text.char_indices().flat_map(|(start, _)| self.atoms_at(text, start, parse_control)).collect();
        found.sort_by_key(|found| (std::cmp::Reverse(found.length), found.start));
        let mut taken = vec![false; text.len()];
        found.retain(|found| {
            let place = &mut taken[found.start..found.start + found.length];
            let is_free = !place.contains(&true);
            if is_free {
                place.fill(true);
            }
            is_free
        });
        found.sort_by_key(|found| found.start);
        let (mut fragments, mut at) = (Vec::new(), 0);
        for Match { start, length, id } in found {
            if start > at {
                fragments.push(Fragment::Text(&text[at..start]));
            }
            fragments.push(Fragment::Atom(id));
            at = start + length;
        }
        if text.len() > at {
            fragments.push(Fragment::Text(&text[at..]));
        }
        fragments
    }

    /// Returns the atoms that begin at a position of a text.
    fn atoms_at(&self, text: &str, start: usize, parse_control: bool) -> impl Iterator<Item = Match> {
        self.atom_lengths.iter().filter_map(move |length| {
            let (id, kind) = self.atoms.get(text.get(start..start.checked_add(*length)?)?)?;
            let counts = *kind == PieceKind::UserDefined || parse_control;
            counts.then_some(Match { start, length: *length, id: *id })
        })
    }

    /// Appends the bytes of a token. Control pieces have none unless `with_control` is true.
    pub(super) fn decode(&self, id: u32, with_control: bool, out: &mut Vec<u8>) {
        let Some(piece) = self.get(id) else { return };
        match piece.kind {
            PieceKind::Byte => out.extend(byte_of(piece.text)),
            PieceKind::Control | PieceKind::Unknown if !with_control => {}
            PieceKind::Control | PieceKind::Unknown | PieceKind::UserDefined => {
                out.extend_from_slice(piece.text.as_bytes());
            }
            PieceKind::Normal => out.extend_from_slice(piece.text.replace(SPACE, " ").as_bytes()),
            PieceKind::Unused => {}
        }
    }
}

/// Returns the byte of a piece `<0xXX>`.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

/// Creates the table of a vocabulary.
#[cfg(test)]
pub(super) fn table(vocabulary: &vocabulary::Vocabulary) -> TokenTable {
    let bytes = TokenTable::of_vocabulary(vocabulary.clone()).expect("a table");
    TokenTable::open(std::sync::Arc::new(bytes)).expect("a table")
}

#[cfg(test)]
mod tests {
    use vocabulary::{Vocabulary, VocabularyEntry, VocabularyKind};

    use super::*;

    #[test]
    fn longer_atoms_come_first() {
        let piece = |text: &str, kind| VocabularyEntry { text: text.to_owned(), score: 0.0, kind };
        let texts = [("abc", PieceKind::UserDefined), ("cdef", PieceKind::UserDefined), ("x", PieceKind::Control)];
        let pieces = |all| Pieces::new(table(&Vocabulary::new(VocabularyKind::SentencePiece, all)));
        let long = pieces(vec![piece(&"a".repeat(2000), PieceKind::Control)]).expect_err("long").to_string();
        let pieces = pieces(texts.iter().map(|(text, kind)| piece(text, *kind)).collect()).expect("short");
        assert!(long.contains("token 0 has 2000 bytes"), "{long}");
        let cut = |text: &str, parse| {
            let shown = |fragment| match fragment {
                Fragment::Atom(id) => format!("[{id}]"),
                Fragment::Text(text) => text.to_owned(),
            };
            pieces.fragments(text, parse).into_iter().map(shown).collect::<Vec<_>>().join("|")
        };
        assert_eq!(cut("abcdefabc", true), "ab|[1]|[0]", "the longer one takes the letter that both have");
        assert_eq!(cut("éxabc", false), "éx|[0]");
        assert_eq!(cut("éxabc", true), "é|[2]|[0]");
        assert_eq!(cut("", true), "");
    }
}
