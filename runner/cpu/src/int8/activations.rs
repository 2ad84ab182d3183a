//! Rows of activations, rounded to 8 bits in blocks of 32.
#![expect(unsafe_code, reason = "threads round rows of x into one slice")]

use super::BLOCK;
use super::activation_rows::{ActivationBlock, ActivationRows, round_with};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::instructions::Instructions;
use crate::pool::{Pool, SharedSlice};

/// Number of elements of x from which several threads round.
const PARALLEL_FROM: usize = 1 << 14;

/// Rows of x, `[m, blocks]`.
#[derive(Debug)]
pub struct Activations {
    blocks: Vec<ActivationBlock>,
    /// Number of blocks in a row.
    row_blocks: usize,
}

impl Activations {
    /// No rows.
    pub const EMPTY: Self = Self { blocks: Vec::new(), row_blocks: 0 };

    /// Returns whether rows of `columns` elements can be rounded: they must be whole blocks.
    pub fn fits(columns: usize) -> bool {
        columns > 0 && columns.is_multiple_of(BLOCK)
    }

    /// Rounds `x`, `[m, columns]`, and replaces the previous rows.
    pub fn fill(&mut self, pool: &Pool, instructions: Instructions, x: &[f32], columns: usize) {
        assert!(Self::fits(columns), "whole blocks");
        // The buffer only grows; blocks that are not written here are not read.
        if self.blocks.len() < x.len() / BLOCK {
            self.blocks.resize(x.len() / BLOCK, ActivationBlock::ZERO);
        }
        self.row_blocks = columns / BLOCK;
        let row_blocks = self.row_blocks;
        let blocks = SharedSlice::new(&mut self.blocks);
        let round = |rows: std::ops::Range<usize>| {
            // SAFETY: a region hands out each row once.
            let own = unsafe { blocks.range(rows.start * row_blocks..rows.end * row_blocks) };
            round(instructions, &x[rows.start * columns..rows.end * columns], own);
        };
        let rows = x.len() / columns;
        if x.len() < PARALLEL_FROM { round(0..rows) } else { pool.run(rows, round) }
    }

    /// Returns the rows from `row` on.
    pub fn after(&self, row: usize) -> ActivationRows<'_> {
        ActivationRows { blocks: &self.blocks[row * self.row_blocks..], row_blocks: self.row_blocks }
    }
}

fn round(instructions: Instructions, x: &[f32], blocks: &mut [ActivationBlock]) {
    #[cfg(target_arch = "x86_64")]
    if instructions.has_avx512() {
        // SAFETY: the features were detected.
        return unsafe { avx512::round(x, blocks) };
    }
    #[cfg(target_arch = "x86_64")]
    if instructions.has_avx2() {
        // SAFETY: the features were detected.
        return unsafe { avx2::round(x, blocks) };
    }
    let _ = instructions;
    round_with(x, blocks);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_rounds_alike() {
        let number = |at: usize| ((at * 61 % 199) as f32 - 99.0) / 33.0 * if at % 96 < 32 { 1e-20 } else { 1.0 };
        let plain: Vec<f32> = (0..BLOCK * 6).map(number).collect();
        let mut wrong = plain.clone();
        (wrong[3], wrong[40], wrong[75]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        wrong[128..160].fill(0.0);
        let tiny: Vec<f32> = plain.iter().zip(0..).map(|(x, at)| x * [1e-37, 1e-38, 1e-40, 1e-45][at / 48]).collect();
        for x in [plain, wrong, tiny] {
            let mut expected = vec![ActivationBlock::ZERO; x.len() / BLOCK];
            round_with(&x, &mut expected);
            for instructions in Instructions::available() {
                let mut blocks = vec![ActivationBlock::ZERO; x.len() / BLOCK];
                round(instructions, &x, &mut blocks);
                for (block, expected) in blocks.iter().zip(&expected) {
                    assert_eq!(block.quants, expected.quants, "{instructions}");
                    let numbers = |block: &ActivationBlock| {
                        [block.scale, block.sum, block.halves[0], block.halves[1]].map(f32::to_bits)
                    };
                    let alike =
                        numbers(block) == numbers(expected) || (block.scale.is_nan() && expected.scale.is_nan());
                    assert!(alike, "{instructions}: {block:?} is not {expected:?}");
                }
            }
        }
    }
}
