//! A vocabulary in a memory-mapped layout: a file of it is used in place, without parsing or
//! copying.
//!
//! ```text
//! head      magic, version of the code that wrote it, hash seed, number of texts, location of each
//!           section, checksum of everything
//! settings  JSON: the facts about the vocabulary besides its tokens, see `Settings`
//! texts     the texts of all tokens, concatenated
//! ends      u32 for each id: end of its text; the text begins at the end of the previous one
//! kinds     u8 for each id: its `PieceKind`; 0 if no token has the id
//! scores    f32 for each id; empty if the vocabulary has none
//! ids       u32 for each hash slot: an id plus one, 0 if the slot is free; looked up by the hash
//!           of the text, then by linear probing
//! merges    4 · u32 for each hash slot: left and right id, rank, merged id; looked up by the hash
//!           of the pair in the same way
//! ```
//!
//! Numbers are little-endian. The format is not stable: a table of another [`VERSION`] is refused
//! and derived again from its source document. Hashes are seeded, so that no vocabulary can be
//! crafted whose tokens all collide.

mod layout;
mod tokenizer_json;
mod write;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Error, PieceKind, Vocabulary};
use layout::{Head, find};
pub use tokenizer_json::is_plain_bpe;

/// Version of the format; it changes with the sources of this crate and of the parsers that it
/// uses.
pub const VERSION: &str = env!("LODE_SOURCES_VERSION");

/// Bytes with a stable address: a mapping, or memory.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The source of a vocabulary, and the facts in it besides tokens and merges.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settings {
    /// The metadata of a GGUF file. Its pieces and merges are empty, because the table contains
    /// them.
    Gguf(Box<Vocabulary>),
    /// A `tokenizer.json` whose model is BPE, without the model's vocabulary and merges.
    TokenizerJson(Box<RawValue>),
}

/// A token of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token<'t> {
    /// Text as in the source.
    pub text: &'t str,
    /// See [`VocabularyEntry::score`](crate::VocabularyEntry::score); 0 if the vocabulary has no
    /// scores.
    pub score: f32,
    /// Kind of the token.
    pub kind: PieceKind,
}

/// The result of merging two tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// Priority; merges with a lower rank are applied first.
    pub rank: u32,
    /// Id of the merged token.
    pub id: u32,
}

/// A vocabulary that is ready for use.
#[derive(Clone)]
pub struct TokenTable {
    bytes: Bytes,
    head: Head,
}

impl fmt::Debug for TokenTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenTable").field("tokens", &self.len()).finish_non_exhaustive()
    }
}

impl TokenTable {
    /// Opens a table in place.
    ///
    /// # Errors
    /// The bytes are not a table, its sections do not fit, or another build wrote it.
    pub fn open(bytes: Bytes) -> Result<Self, Error> {
        let head = Head::read((*bytes).as_ref())?;
        Ok(Self { bytes, head })
    }

    /// Whether a file is a table of this build and all its bytes are unchanged.
    /// [`open`](Self::open) does not verify the bytes; a damaged table can yield wrong tokens.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_whole(file: impl io::Read) -> io::Result<bool> {
        layout::is_sealed(file)
    }

    /// Returns the facts about the vocabulary besides its tokens.
    ///
    /// # Errors
    /// The table is damaged.
    pub fn settings(&self) -> Result<Settings, Error> {
        let raw = self.section(&self.head.settings);
        serde_json::from_slice(raw).map_err(|error| Error(format!("the settings of its token table: {error}")))
    }

    /// Returns the largest id plus one.
    pub fn len(&self) -> u32 {
        self.head.kinds.len() as u32
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.head.kinds.is_empty()
    }

    /// Returns the number of distinct texts.
    pub fn texts(&self) -> usize {
        self.head.count as usize
    }

    /// Returns the token with an id.
    pub fn get(&self, id: u32) -> Option<Token<'_>> {
        let kind = match *self.section(&self.head.kinds).get(id as usize)? {
            0 => return None,
            kind => PieceKind::from_id(u64::from(kind)),
        };
        let text = std::str::from_utf8(self.raw(id)?).ok()?;
        let score = self.number(&self.head.scores, id as usize).map_or(0.0, f32::from_bits);
        Some(Token { text, score, kind })
    }

    /// Returns the kind of a token, like [`get`](Self::get) but without reading its text.
    pub fn kind(&self, id: u32) -> Option<PieceKind> {
        let kind = *self.section(&self.head.kinds).get(id as usize)?;
        (kind != 0).then(|| PieceKind::from_id(u64::from(kind)))
    }

    /// Returns the length of a token's text in bytes.
    pub fn length(&self, id: u32) -> usize {
        self.place(id).map_or(0, |place| place.len())
    }

    /// Returns the id of a text.
    pub fn id(&self, text: &str) -> Option<u32> {
        let slots = self.section(&self.head.ids).as_chunks().0;
        let is_own = |slot: &[u8; 4]| self.raw(id_in(*slot)?).map(|own| own == text.as_bytes());
        let slot = find(slots, self.head.seed, text.as_bytes(), is_own)?;
        id_in(slots[slot])
    }

    /// Returns the merge of two tokens, if there is one.
    pub fn merge(&self, left: u32, right: u32) -> Option<Merge> {
        let slots = self.section(&self.head.merges).as_chunks().0;
        let pair = layout::pair(left, right);
        let is_own = |slot: &[u8; 16]| (*slot != layout::FREE).then(|| slot[..8] == pair);
        let slot = slots[find(slots, self.head.seed, &pair, is_own)?];
        let id = layout::number(&slot, 12).filter(|id| *id < self.len())?;
        Some(Merge { rank: layout::number(&slot, 8)?, id })
    }

    /// Returns all ids, including unused ones.
    pub fn ids(&self) -> Range<u32> {
        0..self.len()
    }

    fn section(&self, section: &Range<usize>) -> &[u8] {
        // The range is within the bytes: it was checked when the head was read, and the bytes do
        // not change.
        (*self.bytes).as_ref().get(section.clone()).unwrap_or_default()
    }

    fn number(&self, section: &Range<usize>, place: usize) -> Option<u32> {
        layout::number(self.section(section), place.checked_mul(4)?)
    }

    fn place(&self, id: u32) -> Option<Range<usize>> {
        let end = |id: u32| self.number(&self.head.ends, id as usize);
        let start = if id == 0 { 0 } else { end(id - 1)? };
        Some(start as usize..end(id)? as usize)
    }

    fn raw(&self, id: u32) -> Option<&[u8]> {
        self.section(&self.head.texts).get(self.place(id)?)
    }
}

/// Returns the id in a slot; `None` if the slot is free.
fn id_in(slot: [u8; 4]) -> Option<u32> {
    u32::from_le_bytes(slot).checked_sub(1)
}

#[cfg(test)]
mod tests;
