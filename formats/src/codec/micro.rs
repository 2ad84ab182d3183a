//! Microscaled groups: `value = element · scale`, encoded as MLX's CPU backend does.
//!
//! nvfp4 has an E4M3 scale for 16 elements, rounded from the scale that maps the largest magnitude
//! to 6. A global scale moves all scales into the range of E4M3. The mx types have a power of two
//! for 32 elements, the smallest one that keeps all elements in range. Its code wraps around if it
//! does not fit into a byte.
#![expect(clippy::inline_always, reason = "what is inlined into the work is compiled for AVX2")]

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::bits;
use super::float;
use super::simd::{self, Work};
use super::small_float::{self, E4M3, e8m0, exponent_above, power_of_two, to_e2m1, to_e4m3};
use super::target::{EncodedBuffers, EncodingTarget, NVFP4_LARGEST};
use crate::encoding::Micro;
use crate::{Dtype, Weight};

/// Scaling of the elements of a group: `element = round(value / step) · factor`.
#[derive(Clone, Copy, Debug, Default)]
struct Scaling {
    /// Divisor of the values.
    step: f32,
    /// Multiplier of the rounded quotient: the global scale of nvfp4, else 1.
    factor: f32,
    /// Code of the scale.
    code: u8,
}

/// Encodes whole groups.
pub(super) fn encode(values: &[f32], micro: Micro, target: EncodingTarget, out: EncodedBuffers<'_>) {
    #[cfg(target_arch = "x86_64")]
    if simd::avx2::available() {
        return avx2::encode(values, micro, target, out);
    }
    Encode { values, micro, target, out }.run();
}

/// Computes the multiplier of the elements of each group of some rows, for scales that are powers
/// of two.
pub(super) fn powers(weight: &Weight<'_>, groups: usize, rows: impl Iterator<Item = usize>, out: &mut [f32]) {
    let scale = weight.scale.expect("invariant: a microscaled weight has scales");
    simd::run(Powers { codes: scale.bytes, groups, rows, out });
}

struct Powers<'a, R> {
    codes: &'a [u8],
    /// Number of groups per row.
    groups: usize,
    rows: R,
    out: &'a mut [f32],
}

impl<R: Iterator<Item = usize>> Work for Powers<'_, R> {
    #[inline(always)]
    fn run(self) {
        for (row, out) in self.rows.zip(self.out.chunks_exact_mut(self.groups)) {
            for (out, code) in out.iter_mut().zip(&self.codes[row * self.groups..][..self.groups]) {
                *out = e8m0(*code);
            }
        }
    }
}

/// Decodes one row.
pub(super) fn decode_row(weight: &Weight<'_>, micro: Micro, row: usize, out: &mut [f32]) {
    let scale = weight.scale.expect("invariant: a microscaled weight has scales");
    let (codes, scales) = (weight.row_of(weight.data, row), weight.row_of(scale.bytes, row));
    simd::run(Decode { codes, scales, micro, global: weight.global_scale, out });
}

struct Encode<'a> {
    values: &'a [f32],
    micro: Micro,
    target: EncodingTarget,
    out: EncodedBuffers<'a>,
}

impl Work for Encode<'_> {
    #[inline(always)]
    fn run(self) {
        match self.micro {
            Micro::Nvfp4 => self.groups::<16, 8>(),
            Micro::Mxfp4 => self.groups::<32, 16>(),
            Micro::Mxfp8 => self.groups::<32, 32>(),
        }
    }
}

impl Encode<'_> {
    /// Encodes groups of `ELEMENTS` elements and `BYTES` bytes.
    #[inline(always)]
    fn groups<const ELEMENTS: usize, const BYTES: usize>(self) {
        let Self { values, micro, target, out } = self;
        let codes = out.data.as_chunks_mut::<BYTES>().0;
        for ((values, codes), code) in values.as_chunks::<ELEMENTS>().0.iter().zip(codes).zip(out.scale) {
            let scaling = scaling(largest_of(values), micro, target);
            *code = scaling.code;
            encode_group(values, micro, target.float, scaling, codes);
        }
    }
}

/// Computes the codes of one group.
#[inline(always)]
fn encode_group<const ELEMENTS: usize, const BYTES: usize>(
    values: &[f32; ELEMENTS],
    micro: Micro,
    float: Dtype,
    scaling: Scaling,
    codes: &mut [u8; BYTES],
) {
    let elements = elements(values, float, scaling);
    if micro == Micro::Mxfp8 {
        for at in 0..BYTES {
            codes[at] = to_e4m3(elements[at]);
        }
    } else {
        bits::pack::<4>(&e2m1_codes(&elements), codes);
    }
}

/// Returns the largest magnitude; NaN is ignored. Magnitudes compare like their bits.
#[inline(always)]
fn largest_of<const ELEMENTS: usize>(values: &[f32; ELEMENTS]) -> f32 {
    let mut largest = 0;
    for value in values {
        let magnitude = value.abs().to_bits();
        largest = largest.max(if magnitude > f32::INFINITY.to_bits() { 0 } else { magnitude });
    }
    f32::from_bits(largest)
}

/// Returns the largest element value.
#[inline(always)]
fn limit(micro: Micro) -> f32 {
    if micro == Micro::Mxfp8 { 448.0 } else { 6.0 }
}

/// Returns the factor that moves the scales of nvfp4 into the range of E4M3.
#[inline(always)]
fn factor(target: EncodingTarget) -> f32 {
    target.global_scale.map_or(1.0, |largest| NVFP4_LARGEST / largest)
}

/// Returns the scaling of a group with the given largest magnitude.
#[inline(always)]
fn scaling(largest: f32, micro: Micro, target: EncodingTarget) -> Scaling {
    let wanted = float::round(target.float, largest / limit(micro));
    if micro == Micro::Nvfp4 {
        let factor = factor(target);
        let code = to_e4m3(wanted * factor);
        return Scaling { step: E4M3[usize::from(code)], factor, code };
    }
    let exponent = exponent_above(wanted);
    let step = float::round(target.float, power_of_two(exponent));
    // Only the lowest eight bits are kept: exponents out of range wrap around, as in the reference.
    Scaling { step, factor: 1.0, code: (exponent + 127).cast_unsigned() as u8 }
}

/// Returns the scaled elements of one group, before rounding to their type.
#[inline(always)]
fn elements<const ELEMENTS: usize>(values: &[f32; ELEMENTS], dtype: Dtype, scaling: Scaling) -> [f32; ELEMENTS] {
    let mut elements = *values;
    for element in &mut elements {
        *element /= scaling.step;
    }
    match dtype {
        Dtype::F32 => {}
        Dtype::Bf16 => {
            for element in &mut elements {
                *element = float::round_bf16(*element);
            }
        }
        _ => {
            for element in &mut elements {
                *element = float::round(dtype, *element);
            }
        }
    }
    for element in &mut elements {
        *element *= scaling.factor;
    }
    elements
}

/// Returns the nearest E2M1 code of each element.
#[inline(always)]
fn e2m1_codes<const ELEMENTS: usize>(elements: &[f32; ELEMENTS]) -> [u8; ELEMENTS] {
    let mut codes = [0; ELEMENTS];
    let mut largest = 0;
    for element in elements {
        largest = largest.max(element.abs().to_bits());
    }
    if largest > small_float::E2M1_DISTINCT.to_bits() {
        // NaN and values far out of range are rare, and take a slower path.
        for (code, element) in codes.iter_mut().zip(elements) {
            *code = to_e2m1(*element);
        }
    } else {
        for (code, element) in codes.iter_mut().zip(elements) {
            *code = small_float::distinct_to_e2m1(*element);
        }
    }
    codes
}

/// Returns the multiplier of the elements of a group.
#[inline(always)]
pub(super) fn multiplier(micro: Micro, code: u8, global: Option<f32>) -> f32 {
    match (micro, global) {
        (Micro::Nvfp4, Some(global)) => E4M3[usize::from(code)] * global,
        (Micro::Nvfp4, None) => E4M3[usize::from(code)],
        (Micro::Mxfp4 | Micro::Mxfp8, _) => e8m0(code),
    }
}

struct Decode<'a> {
    codes: &'a [u8],
    scales: &'a [u8],
    micro: Micro,
    global: Option<f32>,
    out: &'a mut [f32],
}

impl Work for Decode<'_> {
    #[inline(always)]
    fn run(self) {
        match self.micro {
            Micro::Nvfp4 => self.groups::<16, 8>(),
            Micro::Mxfp4 => self.groups::<32, 16>(),
            Micro::Mxfp8 => self.groups::<32, 32>(),
        }
    }
}

impl Decode<'_> {
    /// Decodes groups of `ELEMENTS` elements and `BYTES` bytes.
    #[inline(always)]
    fn groups<const ELEMENTS: usize, const BYTES: usize>(self) {
        let Self { codes, scales, micro, global, out } = self;
        let groups = codes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<ELEMENTS>().0);
        for ((codes, out), scale) in groups.zip(scales) {
            let scale = multiplier(micro, *scale, global);
            if micro == Micro::Mxfp8 {
                for at in 0..BYTES {
                    out[at] = small_float::e4m3(codes[at]) * scale;
                }
            } else {
                let mut apart = [0; ELEMENTS];
                bits::unpack::<4>(codes, &mut apart);
                for at in 0..ELEMENTS {
                    out[at] = small_float::e2m1(apart[at]) * scale;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
