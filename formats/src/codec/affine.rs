//! Affine groups: `value = scale · code + bias`, encoded as MLX's CPU backend does.
//!
//! The end of a group's range that is farther from zero is the *edge*: it has code 0 and is
//! represented exactly. If this is the upper end, codes count downwards and the scale is negative.
//! The step is then adjusted so that zero is a whole number of steps from the edge. Codes are
//! computed with the scale and bias before these are rounded to their type.
#![expect(clippy::inline_always, reason = "what is inlined into the work is compiled for AVX2")]

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::bits;
use super::float;
use super::simd::{self, Work};
use super::target::{EncodedBuffers, EncodingTarget};
use crate::Weight;
use crate::weight::Numbers;

/// The smallest step.
const SMALLEST_STEP: f32 = 1e-7;

/// Groups whose scales are computed in parallel: all groups of a piece.
const TOGETHER: usize = 64;

/// Elements whose codes are computed in parallel; every group size is a multiple.
const SIDE: usize = 32;

/// 2^23. Added to a small integer as float32, it puts the integer into the lowest bits of the
/// mantissa. A fraction is rounded, ties to even.
const WHOLE: f32 = 8_388_608.0;

/// How codes are laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeLayout {
    /// Bits per code: 2, 3, 4, 5, 6 or 8.
    pub(super) bits: usize,
    /// Elements per group: 32, 64 or 128.
    pub(super) group: usize,
}

/// Rows of codes with one scale and one bias for each group.
#[derive(Clone, Copy, Debug)]
struct Groups<'a> {
    codes: &'a [u8],
    scale: Numbers<'a>,
    bias: Numbers<'a>,
}

/// Encodes whole groups.
pub(super) fn encode(values: &[f32], layout: CodeLayout, target: EncodingTarget, out: EncodedBuffers<'_>) {
    #[cfg(target_arch = "x86_64")]
    if simd::avx2::available() {
        return avx2::encode(values, layout, target.float, out);
    }
    Encode { values, layout, target, out }.run();
}

/// Decodes one row.
pub(super) fn decode_row(weight: &Weight<'_>, layout: CodeLayout, row: usize, out: &mut [f32]) {
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
    layout: CodeLayout,
    target: EncodingTarget,
    out: EncodedBuffers<'a>,
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
    /// Processes several groups at a time, because the scale of a single group depends on a chain
    /// of divisions.
    #[inline(always)]
    fn with_bits<const BITS: usize>(self) {
        let Self { values, layout: CodeLayout { group, .. }, target, out } = self;
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

/// Returns the smallest and the largest value; NaN is ignored. [`fit`] does not depend on which of
/// several zeros is found. Values are compared as integers, whose minimum does not depend on the
/// order: the compiler vectorizes this loop, but not a loop over floats.
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

/// Maps the bits of a float to an integer of the same order. The function is its own inverse.
#[inline(always)]
fn ordered(bits: u32) -> i32 {
    let bits = bits.cast_signed();
    bits ^ ((bits >> 31) & i32::MAX)
}

/// Returns the smaller number, or the second if the first is NaN: one instruction, unlike
/// `f32::min`.
#[inline(always)]
fn lesser(number: f32, other: f32) -> f32 {
    if number < other { number } else { other }
}

/// Returns the larger number, or the second if the first is NaN.
#[inline(always)]
fn greater(number: f32, other: f32) -> f32 {
    if number > other { number } else { other }
}

/// Returns scale and bias for values of a range and codes up to `largest`.
#[inline(always)]
fn fit(lo: f32, hi: f32, largest: f32) -> (f32, f32) {
    let low = lo.abs() > hi.abs();
    let edge = if low { lo } else { hi };
    // NaN becomes the smallest step.
    let step = greater((hi - lo) / largest, SMALLEST_STEP);
    let scale = if low { step } else { -step };
    let steps = (edge / scale).round_ties_even();
    // Both values are computed in any case, which avoids a branch.
    let fitted = edge / steps;
    if steps == 0.0 { (scale, 0.0) } else { (fitted, edge) }
}

/// Computes the codes of one group.
#[inline(always)]
fn encode_group<const BITS: usize>(values: &[f32], scale: f32, bias: f32, codes: &mut [u8]) {
    let largest = ((1u32 << BITS) - 1) as f32;
    for (values, codes) in values.as_chunks::<SIDE>().0.iter().zip(codes.chunks_exact_mut(SIDE * BITS / 8)) {
        let mut side = [0; SIDE];
        for at in 0..SIDE {
            // NaN becomes 0. Rounding can come last, because the limits are integers.
            let code = lesser(greater((values[at] - bias) / scale, 0.0), largest);
            side[at] = (code + WHOLE).to_bits() as u8;
        }
        bits::pack::<BITS>(&side, codes);
    }
}

struct Decode<'a> {
    groups: Groups<'a>,
    layout: CodeLayout,
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
        let Self { groups, layout: CodeLayout { group, .. }, out } = self;
        let codes = groups.codes.chunks_exact(group * BITS / 8);
        for (at, (codes, out)) in codes.zip(out.chunks_exact_mut(group)).enumerate() {
            decode_group::<BITS>(codes, float::get(groups.scale, at), float::get(groups.bias, at), out);
        }
    }
}

/// Decodes one group.
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
            // Deliberately rounded twice, as in the reference.
            out[at] = scale * f32::from(side[at]) + bias;
        }
    }
}

#[cfg(test)]
mod tests;
