//! Blocks of positions of a sequence: counted references, so that sequences with a common beginning share those of it; what is
//! written to is copied before. A layer with a window drops the blocks that nothing sees any more, and uses them for the next ones.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use protocol::limits::{AHEAD, CHUNK};

/// Positions of a block.
pub(super) const BLOCK: usize = architectures::blueprint::BLOCK as usize;

/// Where blocks come from.
pub(super) trait Source {
    type Block;
    /// A block; what is in it is not known.
    ///
    /// # Errors
    /// There is no memory.
    fn block(&self) -> Result<Self::Block>;
    /// Makes one the same as another.
    ///
    /// # Errors
    /// The device has failed.
    fn copy(&self, from: &Self::Block, to: &mut Self::Block) -> Result<()>;
}

/// The blocks of a layer of a sequence.
#[derive(Debug)]
pub(super) struct Blocks<T> {
    window: Option<usize>,
    /// The first position of the first block.
    pub(super) start: usize,
    /// The next position.
    pub(super) length: usize,
    pub(super) all: VecDeque<Arc<T>>,
    /// Blocks that were dropped, for the next ones.
    pub(super) spare: Vec<T>,
}

impl<T> Blocks<T> {
    /// None; tokens see so many positions, where there is a window.
    pub(super) fn new(window: Option<usize>) -> Self {
        Self { window, start: 0, length: 0, all: VecDeque::new(), spare: Vec::new() }
    }

    /// Drops what nothing will see any more, and makes the blocks of the next tokens this sequence's own.
    pub(super) fn make_room(&mut self, tokens: usize, source: &impl Source<Block = T>) -> Result<()> {
        if let Some(window) = self.window {
            // The next token sees `window - 1` positions before it; the rest is for answers that are taken back.
            let seen = (self.length + 1).saturating_sub(window + (AHEAD - CHUNK));
            while self.start + BLOCK <= seen && !self.all.is_empty() {
                self.spare.extend(self.all.pop_front().and_then(Arc::into_inner));
                self.start += BLOCK;
            }
        }
        let last = (self.length + tokens - self.start).div_ceil(BLOCK);
        self.make_own((self.length - self.start) / BLOCK..last, source)
    }

    /// Makes blocks this sequence's own: those that are missing, and copies of those that are shared.
    pub(super) fn make_own(&mut self, blocks: Range<usize>, source: &impl Source<Block = T>) -> Result<()> {
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

    fn block(&mut self, source: &impl Source<Block = T>) -> Result<T> {
        match self.spare.pop() {
            Some(block) => Ok(block),
            None => source.block(),
        }
    }

    /// `length`, or less where there is less, if a token there would see all that it may; else 0.
    pub(super) fn nearest(&self, length: usize) -> usize {
        let length = length.min(self.length);
        if self.start <= self.needed(length) { length } else { 0 }
    }

    /// The first position that a token behind `length` others sees.
    pub(super) fn needed(&self, length: usize) -> usize {
        self.window.map_or(0, |window| (length + 1).saturating_sub(window))
    }

    /// Goes back to a length.
    pub(super) fn truncate(&mut self, length: usize) {
        if length == 0 {
            self.start = 0;
        }
        self.length = length.max(self.start);
        let blocks = (self.length - self.start).div_ceil(BLOCK);
        for block in self.all.drain(blocks..) {
            // Memory is given back, but for a little that the next tokens need.
            if self.spare.is_empty() {
                self.spare.extend(Arc::into_inner(block));
            }
        }
    }

    /// The blocks of a beginning, for another sequence; `None` where a token behind it would not see all that it may.
    pub(super) fn share(&self, length: usize) -> Option<Self> {
        if self.nearest(length) != length {
            return None;
        }
        let mut shared = Self { all: self.all.clone(), spare: Vec::new(), ..*self };
        shared.truncate(length);
        Some(shared)
    }
}
