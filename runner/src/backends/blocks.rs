//! Reference-counted blocks of the positions of a sequence.
//!
//! Sequences with a common prefix share the blocks of that prefix; a shared block is copied before
//! it is written to. A layer with a sliding window drops the blocks that no later token can see,
//! and reuses their memory for new blocks.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use protocol::limits::{AHEAD, CHUNK};

/// Number of positions in a block.
pub(super) const BLOCK: usize = architectures::blueprint::BLOCK as usize;

/// Allocates and copies blocks.
pub(super) trait BlockAllocator {
    type Block;
    /// Returns a block with unspecified contents.
    ///
    /// # Errors
    /// Memory is exhausted.
    fn block(&self) -> Result<Self::Block>;
    /// Copies the contents of `from` into `to`.
    ///
    /// # Errors
    /// The device failed.
    fn copy(&self, from: &Self::Block, to: &mut Self::Block) -> Result<()>;
}

/// The blocks that one layer keeps for one sequence.
#[derive(Debug)]
pub(super) struct Blocks<T> {
    window: Option<usize>,
    /// Position of the first row of the first block.
    pub(super) start: usize,
    /// Position of the next token.
    pub(super) length: usize,
    pub(super) all: VecDeque<Arc<T>>,
    /// Dropped blocks, kept for reuse.
    pub(super) spare: Vec<T>,
}

impl<T> Blocks<T> {
    /// Creates an empty list. `window` is the number of positions that a token sees, if limited.
    pub(super) fn new(window: Option<usize>) -> Self {
        Self { window, start: 0, length: 0, all: VecDeque::new(), spare: Vec::new() }
    }

    /// Drops the blocks that no later token can see, and makes the blocks of the next `tokens`
    /// positions writable: allocates missing blocks and copies shared ones.
    pub(super) fn make_room(&mut self, tokens: usize, source: &impl BlockAllocator<Block = T>) -> Result<()> {
        if let Some(window) = self.window {
            // The next token sees `window - 1` earlier positions. The rest is kept so that the
            // sequence can be truncated a little.
            let seen = (self.length + 1).saturating_sub(window + (AHEAD - CHUNK));
            while self.start + BLOCK <= seen && !self.all.is_empty() {
                self.spare.extend(self.all.pop_front().and_then(Arc::into_inner));
                self.start += BLOCK;
            }
        }
        let last = (self.length + tokens - self.start).div_ceil(BLOCK);
        self.make_own((self.length - self.start) / BLOCK..last, source)
    }

    /// Makes these blocks exclusive to this sequence: allocates missing blocks and copies shared
    /// ones.
    pub(super) fn make_own(&mut self, blocks: Range<usize>, source: &impl BlockAllocator<Block = T>) -> Result<()> {
        for index in blocks {
            match self.all.get(index) {
                None => {
                    let block = self.block(source)?;
                    self.all.push_back(Arc::new(block));
                }
                Some(block) if Arc::strong_count(block) > 1 => {
                    let shared = block.clone();
                    let mut own = self.block(source)?;
                    source.copy(&shared, &mut own)?;
                    self.all[index] = Arc::new(own);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn block(&mut self, source: &impl BlockAllocator<Block = T>) -> Result<T> {
        match self.spare.pop() {
            Some(block) => Ok(block),
            None => source.block(),
        }
    }

    /// Returns `length`, at most the current length, if a token at that position would still see
    /// every position that it may see; else 0.
    pub(super) fn nearest(&self, length: usize) -> usize {
        let length = length.min(self.length);
        if self.start <= self.needed(length) { length } else { 0 }
    }

    /// Returns the first position that a token preceded by `length` tokens sees.
    pub(super) fn needed(&self, length: usize) -> usize {
        self.window.map_or(0, |window| (length + 1).saturating_sub(window))
    }

    /// Truncates the sequence to `length` tokens.
    pub(super) fn truncate(&mut self, length: usize) {
        if length == 0 {
            self.start = 0;
        }
        self.length = length.max(self.start);
        let blocks = (self.length - self.start).div_ceil(BLOCK);
        for block in self.all.drain(blocks..) {
            // Memory is freed, except for one spare block that the next tokens need.
            if self.spare.is_empty() {
                self.spare.extend(Arc::into_inner(block));
            }
        }
    }

    /// Returns the blocks of the first `length` tokens, for another sequence. Returns `None` if the
    /// next token would not see every position that it may see.
    pub(super) fn share(&self, length: usize) -> Option<Self> {
        if self.nearest(length) != length {
            return None;
        }
        let mut shared = Self { all: self.all.clone(), spare: Vec::new(), ..*self };
        shared.truncate(length);
        Some(shared)
    }
}
