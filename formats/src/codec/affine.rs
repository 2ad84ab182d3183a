//! Affine groups: `value = scale · code + bias`, as MLX's CPU backend makes them.
//!
//! The end of a group's range that is farther from zero is the *edge*: it has code 0 and is kept exactly. Where that is
//! the upper end, codes count downwards and the scale is negative. The step is then changed so that zero is a whole number
//! of steps from the edge. Codes are computed with scale and bias as they are before these are rounded to their type.
#![expect(clippy::inline_always, reason = "what is inlined into the work is compiled for AVX2")]

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::bits;
use super::float;
use super::rows::{Output, Target};
use super::simd::{self, Work};
use crate::Weight;
use crate::weight::Numbers;

/// The smallest step.
const SMALLEST_STEP: f32 = 1e-7;

/// Groups whose scales are computed side by side: all of a piece.
const TOGETHER: usize = 64;

/// Elements whose codes are computed side by side; every group is a multiple of them.
const SIDE: usize = 32;

/// What makes a float32 of a small whole number have that number in its lowest bits when it is added: 2^23. A fraction is
/// rounded, ties to even.
const WHOLE: f32 = 8_388_608.0;

/// How codes are laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub(super) bits: usize,
    /// Elements of a group: 32, 64 or 128.
    pub(super) group: usize,
}

/// Rows of codes with their scales and biases, as many of each as there are groups.
#[derive(Clone, Copy, Debug)]
struct Groups<'a> {
    codes: &'a [u8],
    scale: Numbers<'a>,
    bias: Numbers<'a>,
}

/// Encodes whole groups.
pub(super) fn encode(values: &[f32], layout: Layout, target: Target, out: Output<'_>) {
    #[cfg(target_arch = "x86_64")]
    if simd::avx2::available() {
        return avx2::encode(values, layout, target.float, out);
    }
    Encode { values, layout, target, out }.run();
}

/// Decodes one row.
pub(super) fn decode_row(weight: &Weight<'_>, layout: Layout, row: usize, out: &mut [f32]) {
    let (Some(scale), Some(bias)) = (weight.scale, weight.bias) else {
        unreachable!("invariant: an affine weight has scales and biases")
    };
    let groups = Groups {
        codes: weight.row_of(weight.data, row),
        scale: Numbers { bytes: weight.row_of(scale.bytes, row), ..scale },
        bias: Numbers { bytes: weight.row_of(bias.bytes, row), ..bias },
    };
    simd::run(Decode { groups, layout, out });
}

struct Encode<'a> {
    values: &'a [f32],
    layout: Layout,
    target: Target,
    out: Output<'a>,
}

impl Work for Encode<'_> {
    #[inline(always)]
    fn run(self) {
        match self.layout.bits {
            2 => self.with_bits::<2>(),
            3 => self.with_bits::<3>(),
            4 => self.with_bits::<4>(),
            5 => self.with_bits::<5>(),
            6 => self.with_bits::<6>(),
            8 => self.with_bits::<8>(),
            bits => unreachable!("invariant: affine codes have 2 to 6 or 8 bits, not {bits}"),
        }
    }
}

impl Encode<'_> {
    /// Some groups at a time, since finding the scale of a single one is waiting for one division after the other.
    #[inline(always)]
    fn with_bits<const BITS: usize>(self) {
        let Self { values, layout: Layout { group, .. }, target, out } = self;
        let number = (target.float.bits() / 8) as usize;
        let largest = ((1u32 << BITS) - 1) as f32;
        let codes = out.data.chunks_mut(TOGETHER * group * BITS / 8);
        let numbers = out.scale.chunks_mut(TOGETHER * number).zip(out.bias.chunks_mut(TOGETHER * number));
        for ((values, codes), (scale_out, bias_out)) in values.chunks(TOGETHER * group).zip(codes).zip(numbers) {
            let (mut scale, mut bias) = ([0.0; TOGETHER], [0.0; TOGETHER]);
            let groups = scale_out.len() / number;
            let (scale, bias) = (&mut scale[..groups], &mut bias[..groups]);
            for ((values, lo), hi) in values.chunks_exact(group).zip(&mut *scale).zip(&mut *bias) {
                (*lo, *hi) = range(values);
            }
            for (scale, bias) in scale.iter_mut().zip(&mut *bias) {
                (*scale, *bias) = fit(*scale, *bias, largest);
            }
            let groups = values.chunks_exact(group).zip(codes.chunks_exact_mut(group * BITS / 8));
            for ((values, codes), (scale, bias)) in groups.zip(scale.iter().zip(&*bias)) {
                encode_group::<BITS>(values, *scale, *bias, codes);
            }
            float::encode_here(target.float, scale, scale_out);
            float::encode_here(target.float, bias, bias_out);
        }
    }
}

/// The smallest and the largest value; NaN does not count. Which zero is found of several does not matter to [`fit`].
/// Compared as whole numbers, whose minimum does not depend on the order: that loop becomes vectors, one of floats does not.
#[inline(always)]
fn range(values: &[f32]) -> (f32, f32) {
    let (most, least) = (ordered(f32::INFINITY.to_bits()), ordered(f32::NEG_INFINITY.to_bits()));
    let (mut lo, mut hi) = (most, least);
    for value in values {
        let number = ordered(value.to_bits());
        lo = lo.min(if value.is_nan() { most } else { number });
        hi = hi.max(if value.is_nan() { least } else { number });
    }
    (
        f32::from_bits(ordered(lo.cast_unsigned()).cast_unsigned()),
        f32::from_bits(ordered(hi.cast_unsigned()).cast_unsigned()),
    )
}

/// Whole numbers in the order of the floats with those bits; its own way back.
#[inline(always)]
fn ordered(bits: u32) -> i32 {
    let bits = bits.cast_signed();
    bits ^ ((bits >> 31) & i32::MAX)
}

/// The lesser of two numbers, the second where the first is NaN: one instruction, unlike `f32::min`.
#[inline(always)]
fn lesser(number: f32, other: f32) -> f32 {
    if number < other { number } else { other }
}

/// The greater of two numbers, the second where the first is NaN.
#[inline(always)]
fn greater(number: f32, other: f32) -> f32 {
    if number > other { number } else { other }
}

/// Scale and bias for values of a range and codes up to `largest`.
#[inline(always)]
fn fit(lo: f32, hi: f32, largest: f32) -> (f32, f32) {
    let low = lo.abs() > hi.abs();
    let edge = if low { lo } else { hi };
    // NaN becomes the smallest step.
    let step = greater((hi - lo) / largest, SMALLEST_STEP);
    let scale = if low { step } else { -step };
    let steps = (edge / scale).round_ties_even();
    // Both are computed in any case, so that there is nothing to branch for.
    let fitted = edge / steps;
    if steps == 0.0 { (scale, 0.0) } else { (fitted, edge) }
}

/// The codes of one group.
#[inline(always)]
fn encode_group<const BITS: usize>(values: &[f32], scale: f32, bias: f32, codes: &mut [u8]) {
    let largest = ((1u32 << BITS) - 1) as f32;
    for (values, codes) in values.as_chunks::<SIDE>().0.iter().zip(codes.chunks_exact_mut(SIDE * BITS / 8)) {
        let mut side = [0; SIDE];
        for at in 0..SIDE {
            // NaN becomes 0. Limits are whole numbers, so that it does not matter that rounding comes last.
            let code = lesser(greater((values[at] - bias) / scale, 0.0), largest);
            side[at] = (code + WHOLE).to_bits() as u8;
        }
        bits::pack::<BITS>(&side, codes);
    }
}

struct Decode<'a> {
    groups: Groups<'a>,
    layout: Layout,
    out: &'a mut [f32],
}

impl Work for Decode<'_> {
    #[inline(always)]
    fn run(self) {
        match self.layout.bits {
            2 => self.with_bits::<2>(),
            3 => self.with_bits::<3>(),
            4 => self.with_bits::<4>(),
            5 => self.with_bits::<5>(),
            6 => self.with_bits::<6>(),
            8 => self.with_bits::<8>(),
            bits => unreachable!("invariant: affine codes have 2 to 6 or 8 bits, not {bits}"),
        }
    }
}

impl Decode<'_> {
    #[inline(always)]
    fn with_bits<const BITS: usize>(self) {
        let Self { groups, layout: Layout { group, .. }, out } = self;
        let codes = groups.codes.chunks_exact(group * BITS / 8);
        for (at, (codes, out)) in codes.zip(out.chunks_exact_mut(group)).enumerate() {
            decode_group::<BITS>(codes, float::get(groups.scale, at), float::get(groups.bias, at), out);
        }
    }
}

/// The values of one group.
#[inline(always)]
fn decode_group<const BITS: usize>(codes: &[u8], scale: f32, bias: f32, out: &mut [f32]) {
    for (codes, out) in codes.chunks_exact(SIDE * BITS / 8).zip(out.as_chunks_mut::<SIDE>().0) {
        let mut side = [0; SIDE];
        if let (8, Some(codes)) = (BITS, codes.first_chunk()) {
            side = *codes;
        } else {
            bits::unpack::<BITS>(codes, &mut side);
        }
        for at in 0..SIDE {
            // Two roundings, on purpose.
            out[at] = scale * f32::from(side[at]) + bias;
        }
    }
}

#[cfg(test)]
mod tests;
