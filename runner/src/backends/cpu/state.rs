//! State that layers keep of a sequence: keys and values in blocks of positions, or recurrent
//! states with checkpoints.
//!
//! A [block](super::super::blocks) holds the keys and values of a fixed number of positions. Its
//! memory is mapped, so the system allocates pages when they are first written.
//!
//! | part of a block | layout |
//! |---|---|
//! | keys | one head after the other, a row for each position |
//! | values | the same; absent if values are the first elements of keys |

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use architectures::LayerState;
use memmap2::MmapMut;
use protocol::KvType;

use crate::backend::{KeyRotation, Shift};
use crate::backends::blocks::{BLOCK, BlockAllocator, Blocks};
use crate::backends::checkpoints::Checkpoints;
use kernels::instructions::Instructions;
use kernels::kv_rows::{CacheRows, encode_row, row_bytes};
use kernels::rotation;

/// State that one layer keeps of one sequence.
#[derive(Debug)]
pub(crate) enum State {
    /// State of attention.
    Kv(Kv),
    /// Compressed entries.
    Entries(Entries),
    /// State of layers whose state does not grow.
    Recurrent(Recurrent),
    /// No state: each token is computed without the others.
    Stateless,
    /// No state: the layer sees whole texts.
    Nothing,
}

impl State {
    pub(crate) fn new(state: LayerState, kv_type: KvType) -> Self {
        match state {
            LayerState::Kv { kv_heads, key_dim, value_dim, window } => {
                let sizes = [kv_heads, key_dim, value_dim].map(|size| size as usize);
                Self::Kv(Kv::new(sizes, window.map(|window| window as usize), kv_type))
            }
            LayerState::Entries { width, every } => {
                let kv = Kv::new([1, width as usize, 0], None, kv_type);
                Self::Entries(Entries { kv, every: every as usize, length: 0 })
            }
            LayerState::Recurrent { numbers } => Self::Recurrent(Recurrent::new(numbers as usize)),
            LayerState::Stateless => Self::Stateless,
            LayerState::Nothing => Self::Nothing,
        }
    }
}

impl crate::backend::State for State {
    fn nearest(&self, length: usize) -> usize {
        match self {
            Self::Kv(kv) => kv.kept.nearest(length),
            Self::Entries(own) => length.min(own.length),
            Self::Recurrent(state) => state.nearest(length),
            Self::Stateless => length,
            Self::Nothing => 0,
        }
    }

    fn truncate(&mut self, length: usize) {
        match self {
            Self::Kv(kv) => kv.kept.truncate(length),
            Self::Entries(own) => own.truncate(length),
            Self::Recurrent(state) => state.truncate(length),
            Self::Stateless | Self::Nothing => {}
        }
    }

    fn checkpoint(&mut self) {
        if let Self::Recurrent(state) = self {
            state.checkpoint();
        }
    }

    fn can_shift(&self, shift: &Shift<'_>) -> bool {
        match self {
            Self::Kv(kv) => kv.can_shift(shift),
            Self::Stateless => true,
            _ => false,
        }
    }

    fn shift(&mut self, shift: &Shift<'_>) -> Result<()> {
        match self {
            Self::Kv(kv) => kv.shift(shift),
            _ => Ok(()),
        }
    }

    fn share(&self, length: usize) -> Option<Self> {
        match self {
            Self::Kv(kv) => kv.kept.share(length).map(|kept| Self::Kv(Kv { kept, rows: kv.rows })),
            Self::Entries(own) => own.share(length).map(Self::Entries),
            Self::Recurrent(state) if state.nearest(length) == length => {
                let mut shared = state.clone();
                shared.truncate(length);
                Some(Self::Recurrent(shared))
            }
            Self::Stateless => Some(Self::Stateless),
            _ => None,
        }
    }
}

/// Selects keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// Keys and values of a layer.
#[derive(Debug)]
pub(crate) struct Kv {
    rows: KvLayout,
    kept: Blocks<MmapMut>,
}

/// Layout of keys and values in a block.
#[derive(Clone, Copy, Debug)]
struct KvLayout {
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    kv_type: KvType,
}

impl BlockAllocator for KvLayout {
    type Block = MmapMut;

    fn block(&self) -> Result<MmapMut> {
        let bytes = BLOCK * self.kv_heads * self.row_bytes().iter().sum::<usize>();
        MmapMut::map_anon(bytes.max(1))
            .with_context(|| format!("cannot allocate {bytes} bytes of KV cache; use a shorter context or fewer slots"))
    }

    fn copy(&self, from: &MmapMut, to: &mut MmapMut) -> Result<()> {
        to.copy_from_slice(from);
        Ok(())
    }
}

impl KvLayout {
    /// Returns the size of a row of keys and of a row of values, in bytes.
    fn row_bytes(&self) -> [usize; 2] {
        let values = if self.value_dim == 0 { 0 } else { row_bytes(self.kv_type, self.value_dim) };
        [row_bytes(self.kv_type, self.key_dim), values]
    }

    /// Returns the offset of a head in a block, in bytes.
    fn offset(&self, half: Half, head: usize) -> usize {
        let [key, value] = self.row_bytes();
        match half {
            Half::Keys => head * BLOCK * key,
            Half::Values => self.kv_heads * BLOCK * key + head * BLOCK * value,
        }
    }

    fn columns(&self, half: Half) -> usize {
        if half == Half::Keys { self.key_dim } else { self.value_dim }
    }

    fn bytes_of(&self, half: Half) -> usize {
        self.row_bytes()[usize::from(half == Half::Values)]
    }

    /// Returns the block and the byte range of a row. Rows are numbered from the first block on.
    fn place(&self, half: Half, head: usize, row: usize) -> (usize, Range<usize>) {
        let bytes = self.bytes_of(half);
        let at = self.offset(half, head) + row % BLOCK * bytes;
        (row / BLOCK, at..at + bytes)
    }
}

impl Kv {
    pub(crate) fn new([kv_heads, key_dim, value_dim]: [usize; 3], window: Option<usize>, kv_type: KvType) -> Self {
        Self { rows: KvLayout { kv_heads, key_dim, value_dim, kv_type }, kept: Blocks::new(window) }
    }

    /// Returns the rows of positions `from..to` of a head, block by block.
    pub(crate) fn rows(&self, half: Half, head: usize, from: usize, to: usize) -> impl Iterator<Item = CacheRows<'_>> {
        assert!(self.kept.start <= from && from <= to && to <= self.kept.length, "positions that are kept");
        // Values without rows of their own are the first elements of the keys.
        let half = if self.rows.value_dim == 0 { Half::Keys } else { half };
        let (row, offset) = (self.rows.bytes_of(half), self.rows.offset(half, head));
        let (first, last) = ((from - self.kept.start) / BLOCK, (to - self.kept.start).div_ceil(BLOCK));
        self.kept.all.range(first..last).enumerate().map(move |(index, block)| {
            let begin = self.kept.start + (first + index) * BLOCK;
            let (from, to) = (from.max(begin) - begin, (to - begin).min(BLOCK));
            CacheRows::new(self.rows.kv_type, self.rows.columns(half), &block[offset + from * row..offset + to * row])
        })
    }

    /// Appends keys, `[tokens, kv_heads · key_dim]`, and values, `[tokens, kv_heads · value_dim]`.
    ///
    /// # Errors
    /// Memory is exhausted.
    pub(crate) fn append(&mut self, keys: &[f32], values: &[f32]) -> Result<()> {
        let tokens = keys.len() / (self.rows.kv_heads * self.rows.key_dim);
        self.kept.make_room(tokens, &self.rows)?;
        let position = self.kept.length;
        self.kept.length += tokens;
        self.write(Half::Keys, position, keys);
        if self.rows.value_dim > 0 {
            self.write(Half::Values, position, values);
        }
        Ok(())
    }

    fn write(&mut self, half: Half, position: usize, x: &[f32]) {
        let (columns, kv_type, start) = (self.rows.columns(half), self.rows.kv_type, self.kept.start);
        for (token, heads) in x.chunks_exact(self.rows.kv_heads * columns).enumerate() {
            for (head, numbers) in heads.chunks_exact(columns).enumerate() {
                encode_row(kv_type, numbers, self.row_mut(half, head, position + token - start));
            }
        }
    }

    /// Returns a row in a block that is exclusive to this sequence.
    fn row_mut(&mut self, half: Half, head: usize, row: usize) -> &mut [u8] {
        let (block, place) = self.rows.place(half, head, row);
        let block = Arc::get_mut(&mut self.kept.all[block]);
        &mut block.expect("invariant: what is written to was made this sequence's own")[place]
    }

    /// Returns the first position that is kept after a shift.
    fn start_after(&self, shift: &Shift<'_>) -> usize {
        if self.kept.start <= shift.removed.start {
            self.kept.start
        } else {
            self.kept.start.max(shift.removed.end) - shift.removed.len()
        }
    }

    /// Returns whether the next token would still see every position that it may see after the
    /// shift, and whether keys can be rotated without much loss of precision.
    fn can_shift(&self, shift: &Shift<'_>) -> bool {
        let length = self.kept.length - shift.removed.len();
        let needed = self.kept.needed(length);
        let can_rotate = shift.rotation.is_none() || self.rows.kv_type != KvType::Q8_0;
        can_rotate && self.start_after(shift) <= needed
    }

    /// Moves the rows behind the removed range to its start, and rotates their keys back by its
    /// length.
    fn shift(&mut self, shift: &Shift<'_>) -> Result<()> {
        let (from, start) = (shift.removed.end.max(self.kept.start), self.start_after(shift));
        let gap = shift.removed.len();
        self.kept.make_own((from - gap - start) / BLOCK..self.kept.all.len(), &self.rows)?;
        let mut numbers = vec![0.0; self.rows.key_dim];
        for position in from..self.kept.length {
            let (old, new) = (position - self.kept.start, position - gap - start);
            for head in 0..self.rows.kv_heads {
                self.move_key(head, old, new, shift.rotation.as_ref(), &mut numbers);
                if self.rows.value_dim > 0 && old != new {
                    self.move_row(Half::Values, head, old, new);
                }
            }
        }
        self.kept.start = start;
        let length = self.kept.length - gap;
        self.kept.truncate(length);
        Ok(())
    }

    fn move_key(
        &mut self,
        head: usize,
        old: usize,
        new: usize,
        rotation: Option<&KeyRotation<'_>>,
        numbers: &mut [f32],
    ) {
        let Some(rotation) = rotation else {
            if old != new {
                self.move_row(Half::Keys, head, old, new);
            }
            return;
        };
        let (block, place) = self.rows.place(Half::Keys, head, old);
        // Decoding is exact with any instructions, and rare here.
        CacheRows::new(self.rows.kv_type, self.rows.key_dim, &self.kept.all[block][place])
            .decode(Instructions::SCALAR, numbers);
        let part = &mut numbers[rotation.first..rotation.first + 2 * rotation.cosines.len()];
        rotation::rotate(part, rotation.cosines, rotation.sines, rotation.layout);
        encode_row(self.rows.kv_type, numbers, self.row_mut(Half::Keys, head, new));
    }

    fn move_row(&mut self, half: Half, head: usize, old: usize, new: usize) {
        let ((from, old), (to, new)) = (self.rows.place(half, head, old), self.rows.place(half, head, new));
        if from == to {
            let block = Arc::get_mut(&mut self.kept.all[to]);
            return block.expect("invariant: it was made this sequence's own").copy_within(old, new.start);
        }
        let source = self.kept.all[from].clone();
        let block = Arc::get_mut(&mut self.kept.all[to]);
        block.expect("invariant: it was made this sequence's own")[new].copy_from_slice(&source[old]);
    }
}

/// Compressed entries of a layer, in the rows of keys.
#[derive(Debug)]
pub(crate) struct Entries {
    pub(crate) kv: Kv,
    /// Number of positions of a segment, which has one entry.
    every: usize,
    /// Position of the next token.
    length: usize,
}

impl Entries {
    /// Appends the rows of those tokens that complete a segment, of `[tokens, width]`.
    ///
    /// # Errors
    /// Memory is exhausted.
    pub(crate) fn append(&mut self, rows: &[f32], tokens: usize) -> Result<()> {
        let width = rows.len() / tokens;
        for token in (0..tokens).filter(|token| (self.length + token + 1).is_multiple_of(self.every)) {
            self.kv.append(&rows[token * width..(token + 1) * width], &[])?;
        }
        self.length += tokens;
        Ok(())
    }

    fn truncate(&mut self, length: usize) {
        self.length = length.min(self.length);
        self.kv.kept.truncate(self.length / self.every);
    }

    fn share(&self, length: usize) -> Option<Self> {
        let kept = self.kv.kept.share(length / self.every).filter(|_| length <= self.length)?;
        Some(Self { kv: Kv { kept, rows: self.kv.rows }, every: self.every, length })
    }
}

/// State of fixed size.
#[derive(Clone, Debug)]
pub(crate) struct Recurrent {
    /// The state after `length` tokens.
    pub(crate) numbers: Vec<f32>,
    pub(crate) length: usize,
    saved: Checkpoints<Vec<f32>>,
}

impl Recurrent {
    fn new(numbers: usize) -> Self {
        Self { numbers: vec![0.0; numbers], length: 0, saved: Checkpoints::new() }
    }

    fn nearest(&self, length: usize) -> usize {
        self.saved.nearest(self.length, length)
    }

    fn truncate(&mut self, length: usize) {
        if length == self.length {
            return;
        }
        match self.saved.back_to(length) {
            Some(numbers) => self.numbers.copy_from_slice(numbers),
            None => self.numbers.fill(0.0),
        }
        self.length = length;
    }

    fn checkpoint(&mut self) {
        self.saved.push(self.length, |memory| {
            let mut numbers = memory.unwrap_or_default();
            numbers.clear();
            numbers.extend_from_slice(&self.numbers);
            numbers
        });
    }
}

#[cfg(test)]
mod tests;
