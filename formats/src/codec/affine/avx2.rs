//! Affine groups with AVX2, eight groups in parallel. The result has the same bits as the portable
//! code's.
//!
//! A code is the rounded quotient of a value's distance from the bias and the scale. Here it is a
//! product with the reciprocal, in fixed point with units of 1/65536. The product differs from the
//! float32 quotient by at most four units. Both are therefore rounded alike, unless the product is
//! next to a tie. Runs with such a value are divided.
#![expect(unsafe_code, reason = "functions compiled for AVX2 are called where AVX2 was detected")]

use std::arch::x86_64::{
    __m256, __m256i, _CMP_EQ_OQ, _CMP_GE_OQ, _CMP_GT_OQ, _CMP_LE_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT,
    _mm256_add_epi32, _mm256_and_ps, _mm256_andnot_ps, _mm256_blend_epi16, _mm256_blendv_ps, _mm256_cmp_ps,
    _mm256_cmpeq_epi16, _mm256_cvtps_epi32, _mm256_div_ps, _mm256_max_ps, _mm256_min_epu8, _mm256_min_epu16,
    _mm256_min_ps, _mm256_movemask_epi8, _mm256_mul_ps, _mm256_or_si256, _mm256_round_ps, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_srai_epi32,
    _mm256_sub_ps, _mm256_xor_ps,
};

use super::super::bits;
use super::super::simd::avx2::{
    LANES, RUN, available, bytes, greatest, load, load_run, numbers, unsigned_bytes, write, write_nibbles,
};
use super::super::target::EncodedBuffers;

use super::{CodeLayout, SMALLEST_STEP};
use crate::Dtype;

/// Denominator of the fixed-point unit: products are multiples of 1 / 65536.
const FRACTION: f32 = 65_536.0;

/// One half, in fixed-point units.
const HALF: i32 = 1 << 15;

/// Maximum difference of product and quotient, in fixed-point units. The reciprocal, the product
/// and the quotient each have a rounding error of 2^-24 of at most 256, which is one unit; rounding
/// the product to whole units adds the fourth.
const UNSURE: i16 = 4;

/// The error bound of [`UNSURE`] holds for the reciprocals of scales between this and its
/// reciprocal.
const ORDINARY: f32 = f32::from_bits((127 - 60) << 23);

/// Encodes whole groups.
///
/// # Panics
/// If the CPU lacks the features, see [`available`].
pub(super) fn encode(values: &[f32], layout: CodeLayout, float: Dtype, out: EncodedBuffers<'_>) {
    assert!(available(), "invariant: the caller has checked for AVX2");
    // SAFETY: the CPU has the features, see the assertion.
    unsafe {
        match layout.bits {
            2 => encode_bits::<2>(values, layout.group, float, out),
            3 => encode_bits::<3>(values, layout.group, float, out),
            4 => encode_bits::<4>(values, layout.group, float, out),
            5 => encode_bits::<5>(values, layout.group, float, out),
            6 => encode_bits::<6>(values, layout.group, float, out),
            8 => encode_bits::<8>(values, layout.group, float, out),
            bits => unreachable!("invariant: affine codes have 2 to 6 or 8 bits, not {bits}"),
        }
    }
}

/// Scales and biases of eight groups.
struct Fits {
    scale: __m256,
    bias: __m256,
    /// [`FRACTION`] divided by the scale; 0 if codes must be divided.
    inverse: __m256,
}

/// Scale and bias of one group, broadcast to eight lanes.
struct Fit {
    scale: __m256,
    bias: __m256,
    inverse: __m256,
}

#[target_feature(enable = "avx2,f16c")]
fn encode_bits<const BITS: usize>(values: &[f32], group: usize, float: Dtype, out: EncodedBuffers<'_>) {
    let number = (float.bits() / 8) as usize;
    let EncodedBuffers { data, scale, bias } = out;
    let codes = data.chunks_mut(LANES * group * BITS / 8);
    let fits = scale.chunks_mut(LANES * number).zip(bias.chunks_mut(LANES * number));
    for ((values, codes), (scale_out, bias_out)) in values.chunks(LANES * group).zip(codes).zip(fits) {
        let (lo, hi) = ranges(values, group);
        let Fits { scale, bias, inverse } = fit(lo, hi, ((1u32 << BITS) - 1) as f32);
        write(float, scale, scale_out);
        write(float, bias, bias_out);
        let (scale, bias, inverse) = (numbers(scale), numbers(bias), numbers(inverse));
        let groups = values.chunks_exact(group).zip(codes.chunks_exact_mut(group * BITS / 8));
        for (at, (values, codes)) in groups.enumerate() {
            let fit = Fit {
                scale: _mm256_set1_ps(scale[at]),
                bias: _mm256_set1_ps(bias[at]),
                inverse: _mm256_set1_ps(inverse[at]),
            };
            if inverse[at] == 0.0 {
                encode_group::<BITS, false>(values, &fit, codes);
            } else {
                encode_group::<BITS, true>(values, &fit, codes);
            }
        }
    }
}

/// Returns the smallest and the largest value of up to eight groups; NaN is ignored.
#[inline]
#[target_feature(enable = "avx2")]
fn ranges(values: &[f32], group: usize) -> (__m256, __m256) {
    let (mut least, mut most) = ([_mm256_setzero_ps(); LANES], [_mm256_setzero_ps(); LANES]);
    for ((values, least), most) in values.chunks_exact(group).zip(&mut least).zip(&mut most) {
        let (mut lo, mut hi) = (_mm256_set1_ps(f32::INFINITY), _mm256_set1_ps(f32::NEG_INFINITY));
        for values in values.as_chunks::<LANES>().0 {
            let values = load(values);
            // Both instructions return the second operand if the first is NaN.
            lo = _mm256_min_ps(values, lo);
            hi = _mm256_max_ps(values, hi);
        }
        *least = negative(lo);
        *most = hi;
    }
    (negative(greatest(least)), greatest(most))
}

#[inline]
#[target_feature(enable = "avx2")]
fn negative(vector: __m256) -> __m256 {
    _mm256_xor_ps(vector, _mm256_set1_ps(-0.0))
}

#[inline]
#[target_feature(enable = "avx2")]
fn magnitude(vector: __m256) -> __m256 {
    _mm256_andnot_ps(_mm256_set1_ps(-0.0), vector)
}

/// [`super::fit`] for eight groups.
#[inline]
#[target_feature(enable = "avx2")]
fn fit(lo: __m256, hi: __m256, largest: f32) -> Fits {
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    let low = _mm256_cmp_ps::<_CMP_GT_OQ>(magnitude(lo), magnitude(hi));
    let edge = _mm256_blendv_ps(hi, lo, low);
    let step = _mm256_div_ps(_mm256_sub_ps(hi, lo), _mm256_set1_ps(largest));
    let step = _mm256_max_ps(step, _mm256_set1_ps(SMALLEST_STEP));
    let scale = _mm256_blendv_ps(negative(step), step, low);
    let steps = _mm256_round_ps::<NEAREST>(_mm256_div_ps(edge, scale));
    let around_zero = _mm256_cmp_ps::<_CMP_EQ_OQ>(steps, _mm256_setzero_ps());
    let scale = _mm256_blendv_ps(_mm256_div_ps(edge, steps), scale, around_zero);
    let bias = _mm256_andnot_ps(around_zero, edge);
    let size = magnitude(scale);
    let ordinary = _mm256_and_ps(
        _mm256_cmp_ps::<_CMP_GE_OQ>(size, _mm256_set1_ps(ORDINARY)),
        _mm256_cmp_ps::<_CMP_LE_OQ>(size, _mm256_set1_ps(1.0 / ORDINARY)),
    );
    let inverse = _mm256_and_ps(ordinary, _mm256_div_ps(_mm256_set1_ps(FRACTION), scale));
    Fits { scale, bias, inverse }
}

/// Computes the codes of one group; with `QUICK`, by the reciprocal.
#[inline]
#[target_feature(enable = "avx2")]
fn encode_group<const BITS: usize, const QUICK: bool>(values: &[f32], fit: &Fit, codes: &mut [u8]) {
    for (values, codes) in values.as_chunks::<RUN>().0.iter().zip(codes.chunks_exact_mut(RUN * BITS / 8)) {
        let values = load_run(values);
        let quick = if QUICK { products(values, fit) } else { None };
        let found = match quick {
            Some(codes) => codes,
            None => quotients(values, fit),
        };
        // Limits codes to the largest; quotients beyond it can be up to twice as large.
        let found = _mm256_min_epu8(found, _mm256_set1_epi8(((1u32 << BITS) - 1) as i8));
        if let (4, Ok(codes)) = (BITS, <&mut [u8; RUN / 2]>::try_from(&mut *codes)) {
            write_nibbles(found, codes);
        } else {
            bits::pack::<BITS>(&bytes(found), codes);
        }
    }
}

/// Returns the codes as bytes, or `None` if one of them is next to a tie. NaN becomes 0, because it
/// is converted to a value far below zero.
#[inline]
#[target_feature(enable = "avx2")]
fn products(values: [__m256; 4], fit: &Fit) -> Option<__m256i> {
    let offset = _mm256_set1_epi32(HALF + i32::from(UNSURE));
    let mut fixed = [offset; 4];
    for (fixed, values) in fixed.iter_mut().zip(values) {
        let product = _mm256_mul_ps(_mm256_sub_ps(values, fit.bias), fit.inverse);
        *fixed = _mm256_add_epi32(_mm256_cvtps_epi32(product), offset);
    }
    let unsure = _mm256_or_si256(near_tie(fixed[0], fixed[1]), near_tie(fixed[2], fixed[3]));
    if _mm256_movemask_epi8(unsure) != 0 {
        return None;
    }
    for fixed in &mut fixed {
        *fixed = _mm256_srai_epi32::<16>(*fixed);
    }
    Some(unsigned_bytes(fixed))
}

/// Returns a mask of values that are too close to a tie. The sixteen values have a half and
/// [`UNSURE`] added.
#[inline]
#[target_feature(enable = "avx2")]
fn near_tie(first: __m256i, second: __m256i) -> __m256i {
    let fractions = _mm256_blend_epi16::<0b1010_1010>(first, _mm256_slli_epi32::<16>(second));
    _mm256_cmpeq_epi16(_mm256_min_epu16(fractions, _mm256_set1_epi16(2 * UNSURE)), fractions)
}

/// Computes codes as bytes by division. The conversion rounds to nearest, ties to even.
#[inline]
#[target_feature(enable = "avx2")]
fn quotients(values: [__m256; 4], fit: &Fit) -> __m256i {
    let mut codes = [_mm256_set1_epi32(0); 4];
    for (code, values) in codes.iter_mut().zip(values) {
        let quotient = _mm256_div_ps(_mm256_sub_ps(values, fit.bias), fit.scale);
        // NaN becomes 0; infinity becomes 255.
        let bounded = _mm256_min_ps(_mm256_max_ps(quotient, _mm256_setzero_ps()), _mm256_set1_ps(255.0));
        *code = _mm256_cvtps_epi32(bounded);
    }
    unsigned_bytes(codes)
}
