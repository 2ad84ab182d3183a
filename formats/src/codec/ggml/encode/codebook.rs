//! Encoders of the four-bit types with a table of values. Source of the algorithms:
//! `quantize_row_iq4_nl_impl` without an importance matrix and `quantize_row_mxfp4_ref` in
//! `ggml-quants.c`; see [`super::super::codebook`] for the layouts.

use super::super::codebook::{E2M1, STEPS, half_of_e8m0};
use super::super::half;
use super::extremes::largest_magnitude;
use super::fit::{ZERO, most_extreme, side_by_side};
use super::lanes::Lanes;
use super::rounding::{nearest, reciprocal, truncate};

/// Midpoints between the steps: from each on, the next step is nearer.
const MIDPOINTS: [f32; 15] = {
    let mut midpoints = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        midpoints[i] = f32::midpoint(STEPS[i] as f32, STEPS[i + 1] as f32);
        i += 1;
    }
    midpoints
};

/// Blocks do not depend on each other: eight are searched in parallel, and the last ones are padded
/// with zeros.
#[inline(always)]
pub(super) fn iq4_nl<L: Lanes>(row: &[f32], out: &mut [u8]) {
    let blocks = out.as_chunks_mut::<18>().0;
    for (numbers, blocks) in row.chunks(8 * 32).zip(blocks.chunks_mut(8)) {
        let mut eight = [[0.0; 32]; 8];
        eight.as_flattened_mut()[..numbers.len()].copy_from_slice(numbers);
        let scales = fit_steps::<L>(&eight);
        for (at, block) in blocks.iter_mut().enumerate() {
            block[..2].copy_from_slice(&half::from_f32(scales[at]).to_le_bytes());
            block[2..].copy_from_slice(&step_nibbles(&eight[at], reciprocal(scales[at])));
        }
    }
}

/// Scales are signed and have 6 bits.
#[inline(always)]
pub(super) fn iq4_xs<L: Lanes>(numbers: &[f32; 256], block: &mut [u8; 136]) {
    let sub_blocks: &[[f32; 32]; 8] = numbers.as_chunks().0.first_chunk().expect("invariant: 256 are 8 times 32");
    let scales = fit_steps::<L>(sub_blocks);
    let larger = |extreme: f32, scale: &f32| if scale.abs() > extreme.abs() { *scale } else { extreme };
    let d = -scales.iter().fold(0.0, larger) / 32.0;
    let inverse = reciprocal(d);
    let (mut high, mut low) = (0, [0; 4]);
    for (at, codes) in block[8..].as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = nearest(inverse * scales[at]).clamp(-32, 31);
        *codes = step_nibbles(&sub_blocks[at], reciprocal(d * scale as f32));
        let scale = (scale + 32) as u16;
        low[at / 2] |= (scale as u8 & 15) << (at % 2 * 4);
        high |= scale >> 4 << (2 * at);
    }
    block[..2].copy_from_slice(&half::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&high.to_le_bytes());
    block[4..8].copy_from_slice(&low);
}

/// Returns the scale with the least squared error, weighted by the squares. Candidates map the
/// number with the largest magnitude to -127 and up to seven steps to either side, or to 127.
/// Returns 0 if the sub-block counts as [`ZERO`].
#[inline(always)]
fn fit_steps<L: Lanes>(sub_blocks: &[[f32; 32]; 8]) -> [f32; 8] {
    let zero = L::splat(0.0);
    let numbers = side_by_side::<L, 32>(sub_blocks);
    let (magnitude, extreme) = most_extreme(&numbers);
    let first = f32::from(STEPS[0]);
    let negative = zero.sub(extreme);
    let (products, squares) = sums(&numbers, L::splat(1.0).div(negative.div(L::splat(first))));
    let mut scale = L::select(zero.less(squares), products.div(squares), zero);
    let mut best = scale.mul(products);
    for candidate in -7i8..=7 {
        let (products, squares) = sums(&numbers, L::splat(f32::from(candidate) + first).div(extreme));
        let better = L::and(zero.less(squares), best.mul(squares).less(products.mul(products)));
        scale = L::select(better, products.div(squares), scale);
        best = L::select(better, scale.mul(products), best);
    }
    L::select(magnitude.less(L::splat(ZERO)), zero, scale).numbers()
}

/// Returns the weighted sums of `number · step` and of squared steps.
#[inline(always)]
fn sums<L: Lanes>(numbers: &[L; 32], inverse: L) -> (L, L) {
    let (mut products, mut squares) = (L::splat(0.0), L::splat(0.0));
    for number in numbers {
        let step = nearest_step(inverse.mul(*number));
        let weighted = number.mul(*number).mul(step);
        products = products.add(weighted.mul(*number));
        squares = squares.add(weighted.mul(step));
    }
    (products, squares)
}

#[inline(always)]
fn nearest_step<L: Lanes>(number: L) -> L {
    let mut step = L::splat(f32::from(STEPS[0]));
    for (midpoint, next) in MIDPOINTS.iter().zip(&STEPS[1..]) {
        step = L::select(number.less(L::splat(*midpoint)), step, L::splat(f32::from(*next)));
    }
    step
}

/// Returns the codes of the steps nearest to `number · inverse`.
#[inline(always)]
fn step_nibbles(numbers: &[f32; 32], inverse: f32) -> [u8; 16] {
    let mut codes = [0u8; 32];
    for midpoint in MIDPOINTS {
        for (code, number) in codes.iter_mut().zip(numbers) {
            let below = number * inverse < midpoint;
            *code += u8::from(!below);
        }
    }
    nibbles(&codes)
}

/// The exponent scales the largest magnitude to between 4 and 8. Of several nearest codes, the
/// first is used.
#[inline(always)]
pub(super) fn mxfp4<L: Lanes>(numbers: &[f32; 32], block: &mut [u8; 17]) {
    let largest = largest_magnitude::<L, 32>(numbers);
    let exponent = if largest > 0.0 { truncate(largest.log2().floor() - 2.0 + 127.0) as u8 } else { 0 };
    let scale = half_of_e8m0(exponent);
    let mut codes = [L::splat(0.0); 4];
    for (code, numbers) in codes.iter_mut().zip(numbers.as_chunks::<8>().0) {
        let numbers = L::new(*numbers);
        let mut least_error = L::splat(E2M1[0] * scale).sub(numbers).abs();
        for candidate in 1..16u8 {
            let error = L::splat(E2M1[usize::from(candidate)] * scale).sub(numbers).abs();
            let better = error.less(least_error);
            *code = L::select(better, L::splat(f32::from(candidate)), *code);
            least_error = L::select(better, error, least_error);
        }
    }
    block[0] = exponent;
    block[1..].copy_from_slice(&nibbles(&L::bytes(codes)));
}

/// Packs codes into nibbles: element `i` in the low half of byte `i`, element `i + 16` in the high
/// half.
#[inline(always)]
fn nibbles(codes: &[u8; 32]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for i in 0..16 {
        bytes[i] = codes[i] | codes[i + 16] << 4;
    }
    bytes
}
