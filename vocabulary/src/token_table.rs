//! A vocabulary laid out so that it is used where it lies: a file of it is mapped, nothing of it is parsed or copied.
//!
//! ```text
//! head      magic, version of the code that made it, seed of the hashes, number of texts, place of each section, checksum of all
//! settings  JSON: what is told of the vocabulary beside its tokens, see `Settings`
//! texts     the texts of all tokens, one after the other
//! ends      u32 for each id: where its text ends; it begins where the one before ends
//! kinds     u8 for each id: its `PieceKind`; 0 where there is no token of that id
//! scores    f32 for each id; empty where the vocabulary has none
//! ids       u32 for each slot: an id plus one, 0 where the slot is free; found by the text's hash, then one slot after the other
//! merges    4 · u32 for each slot: left and right id, rank, id of both together; found by the pair's hash likewise
//! ```
//!
//! Numbers are little-endian. What is derived is not frozen: a table of another [`VERSION`] is refused, and made again from the
//! document that it came from. Hashes have a seed, so that no vocabulary can be made whose tokens all meet in one slot.

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

/// Changes with the sources of this crate and of the parsers below it.
pub const VERSION: &str = env!("LODE_SOURCES_VERSION");

/// Bytes that stay where they are: a mapping, or memory.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Where a vocabulary came from, and what is told there beside its tokens and merges.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settings {
    /// The metadata of a GGUF file. Its pieces and merges are empty: the table has them.
    Gguf(Box<Vocabulary>),
    /// A `tokenizer.json` without the vocabulary and the merges of its model, which is BPE.
    TokenizerJson(Box<RawValue>),
}

/// A token of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token<'t> {
    /// As its source has it.
    pub text: &'t str,
    /// See [`Piece::score`](crate::Piece::score); 0 where the vocabulary has no scores.
    pub score: f32,
    /// What it is for.
    pub kind: PieceKind,
}

/// What two tokens become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// Lower ones come first.
    pub rank: u32,
    /// The token of both texts.
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
    /// Uses a table that lies there.
    ///
    /// # Errors
    /// It is none, its parts do not fit, or another build made it.
    pub fn open(bytes: Bytes) -> Result<Self, Error> {
        let head = Head::read((*bytes).as_ref())?;
        Ok(Self { bytes, head })
    }

    /// Whether a file is a table of this build, with all the bytes that it was made with. [`open`](Self::open) does not look at them:
    /// what is damaged then gives other tokens.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn is_whole(file: impl io::Read) -> io::Result<bool> {
        layout::is_sealed(file)
    }

    /// What is told of the vocabulary beside its tokens.
    ///
    /// # Errors
    /// The table is damaged.
    pub fn settings(&self) -> Result<Settings, Error> {
        let raw = self.section(&self.head.settings);
        serde_json::from_slice(raw).map_err(|error| Error(format!("the settings of its token table: {error}")))
    }

    /// One more than the largest id.
    pub fn len(&self) -> u32 {
        self.head.kinds.len() as u32
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.head.kinds.is_empty()
    }

    /// The number of different texts.
    pub fn texts(&self) -> usize {
        self.head.count as usize
    }

    /// The token of an id.
    pub fn get(&self, id: u32) -> Option<Token<'_>> {
        let kind = match *self.section(&self.head.kinds).get(id as usize)? {
            0 => return None,
            kind => PieceKind::from_id(u64::from(kind)),
        };
        let text = std::str::from_utf8(self.raw(id)?).ok()?;
        let score = self.number(&self.head.scores, id as usize).map_or(0.0, f32::from_bits);
        Some(Token { text, score, kind })
    }

    /// What a token is for: as [`get`](Self::get), but that its text is not touched.
    pub fn kind(&self, id: u32) -> Option<PieceKind> {
        let kind = *self.section(&self.head.kinds).get(id as usize)?;
        (kind != 0).then(|| PieceKind::from_id(u64::from(kind)))
    }

    /// The length of a token's text in bytes.
    pub fn length(&self, id: u32) -> usize {
        self.place(id).map_or(0, |place| place.len())
    }

    /// The id of a text.
    pub fn id(&self, text: &str) -> Option<u32> {
        let slots = self.section(&self.head.ids).as_chunks().0;
        let is_own = |slot: &[u8; 4]| self.raw(id_in(*slot)?).map(|own| own == text.as_bytes());
        let slot = find(slots, self.head.seed, text.as_bytes(), is_own)?;
        id_in(slots[slot])
    }

    /// What two tokens become, where they become one.
    pub fn merge(&self, left: u32, right: u32) -> Option<Merge> {
        let slots = self.section(&self.head.merges).as_chunks().0;
        let pair = layout::pair(left, right);
        let is_own = |slot: &[u8; 16]| (*slot != layout::FREE).then(|| slot[..8] == pair);
        let slot = slots[find(slots, self.head.seed, &pair, is_own)?];
        let id = layout::number(&slot, 12).filter(|id| *id < self.len())?;
        Some(Merge { rank: layout::number(&slot, 8)?, id })
    }

    /// All ids, also those of no token.
    pub fn ids(&self) -> Range<u32> {
        0..self.len()
    }

    fn section(&self, section: &Range<usize>) -> &[u8] {
        // Inside of the bytes: the head was read so, and they stay.
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

/// The id in a slot; `None` where it is free.
fn id_in(slot: [u8; 4]) -> Option<u32> {
    u32::from_le_bytes(slot).checked_sub(1)
}

#[cfg(test)]
mod tests;
