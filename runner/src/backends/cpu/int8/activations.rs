//! Rows of activations, rounded to 8 bits in blocks of 32.
#![expect(unsafe_code, reason = "threads round rows of x into one slice")]

use super::BLOCK;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::backends::cpu::instructions::Instructions;
use crate::pool::{Pool, SharedSlice};

/// Number of elements of x from which several threads round.
const PARALLEL_FROM: usize = 1 << 14;

/// A block of activations: `x = e·p`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct ActivationBlock {
    /// `e`.
    pub(super) scale: f32,
    /// `Σ p`.
    pub(super) sum: f32,
    /// `Σ p` of the first 16 elements and of the second 16.
    pub(super) halves: [f32; 2],
    /// `p`.
    pub(super) quants: [i8; BLOCK],
}

impl ActivationBlock {
    const ZERO: Self = Self { scale: 0.0, sum: 0.0, halves: [0.0; 2], quants: [0; BLOCK] };
}

/// Rows of x, `[m, blocks]`.
#[derive(Debug)]
pub(in crate::backends::cpu) struct Activations {
    blocks: Vec<ActivationBlock>,
    /// Number of blocks in a row.
    row_blocks: usize,
}

impl Activations {
    /// No rows.
    pub(in crate::backends::cpu) const EMPTY: Self = Self { blocks: Vec::new(), row_blocks: 0 };

    /// Returns whether rows of `columns` elements can be rounded: they must be whole blocks.
    pub(in crate::backends::cpu) fn fits(columns: usize) -> bool {
        columns > 0 && columns.is_multiple_of(BLOCK)
    }

    /// Rounds `x`, `[m, columns]`, and replaces the previous rows.
    pub(in crate::backends::cpu) fn fill(
        &mut self,
        pool: &Pool,
        instructions: Instructions,
        x: &[f32],
        columns: usize,
    ) {
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
    pub(in crate::backends::cpu) fn after(&self, row: usize) -> ActivationRows<'_> {
        ActivationRows { blocks: &self.blocks[row * self.row_blocks..], row_blocks: self.row_blocks }
    }
}

/// Some rows of activations, `[m, blocks]`.
#[derive(Clone, Copy, Debug)]
pub(in crate::backends::cpu) struct ActivationRows<'a> {
    blocks: &'a [ActivationBlock],
    /// Number of blocks in a row.
    row_blocks: usize,
}

impl<'a> ActivationRows<'a> {
    /// Returns the blocks of a row from `first` on.
    pub(super) fn row(self, row: usize, first: usize) -> &'a [ActivationBlock] {
        &self.blocks[row * self.row_blocks + first..(row + 1) * self.row_blocks]
    }

    /// Returns the blocks of consecutive rows from `first` on, and the distance between rows in
    /// blocks.
    pub(super) fn rows(self, row: usize, count: usize, first: usize) -> (&'a [ActivationBlock], usize) {
        (&self.blocks[row * self.row_blocks + first..(row + count) * self.row_blocks], self.row_blocks)
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

/// Returns the factor that converts numbers to codes: 0 if the scale is too small for a finite
/// factor.
#[inline(always)]
#[expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]
pub(super) fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if scale > 0.0 && inverse.is_finite() { inverse } else { 0.0 }
}

/// Rounds on any machine; the reference for the other implementations.
#[inline(always)]
#[expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]
pub(super) fn round_with(x: &[f32], blocks: &mut [ActivationBlock]) {
    for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        // Codes cannot represent NaN. The scale becomes NaN instead, and with it all sums of the
        // block.
        let scale = if x.iter().any(|x| x.is_nan()) { f32::NAN } else { largest / 127.0 };
        let inverse = inverse(scale);
        for (quant, x) in block.quants.iter_mut().zip(x) {
            *quant = (x * inverse).round_ties_even() as i8;
        }
        let (first, second) = block.quants.split_at(BLOCK / 2);
        let sum = |quants: &[i8]| quants.iter().map(|quant| i32::from(*quant)).sum::<i32>() as f32;
        block.halves = [sum(first), sum(second)];
        block.sum = block.halves[0] + block.halves[1];
        block.scale = scale;
    }
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
