//! Rounded activations: blocks of 32, and views of rows.

use super::BLOCK;

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
    pub(super) const ZERO: Self = Self { scale: 0.0, sum: 0.0, halves: [0.0; 2], quants: [0; BLOCK] };
}

/// Some rows of activations, `[m, blocks]`.
#[derive(Clone, Copy, Debug)]
pub struct ActivationRows<'a> {
    pub(super) blocks: &'a [ActivationBlock],
    /// Number of blocks in a row.
    pub(super) row_blocks: usize,
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
