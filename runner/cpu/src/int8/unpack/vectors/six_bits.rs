//! Scales and offsets of six bits, for eight rows at a time.
#![expect(unsafe_code, reason = "SIMD")]

use std::arch::x86_64::{
    __m128i, __m256, _mm_and_si128, _mm_loadl_epi64, _mm_loadu_si32, _mm_or_si128, _mm_set1_epi8, _mm_setzero_si128,
    _mm_srli_epi16, _mm_srli_si128, _mm_unpackhi_epi16, _mm_unpackhi_epi32, _mm_unpacklo_epi8, _mm_unpacklo_epi16,
    _mm_unpacklo_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_loadu_ps, _mm256_mul_ps, _mm256_storeu_ps,
};

use super::super::Factors;
use crate::int8::panel_size::HALF;

/// See [`VectorUnit::six_bits`](super::super::VectorUnit::six_bits). Interleaves the bytes of eight
/// rows first, then splits them into one vector for each two parts.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn six_bits(packed: [&[u8; 12]; HALF], d: &[f32; HALF], m: &[f32; HALF], factors: &mut Factors) {
    let (mut first, mut rest) = ([_mm_setzero_si128(); HALF], [_mm_setzero_si128(); HALF]);
    for row in 0..HALF {
        // SAFETY: there are twelve bytes.
        unsafe {
            first[row] = _mm_loadl_epi64(packed[row].as_ptr().cast());
            rest[row] = _mm_loadu_si32(packed[row].as_ptr().add(8));
        }
    }
    let [[s0, s1], [o0, o1]] = bytes_by_eight(first);
    let [[r0, r1], _] = bytes_by_eight(rest);
    let low = |bytes, mask| _mm_and_si128(bytes, _mm_set1_epi8(mask));
    let six = |rest: __m128i, bytes: __m128i| {
        _mm_or_si128(
            _mm_and_si128(rest, _mm_set1_epi8(15)),
            _mm_and_si128(_mm_srli_epi16::<2>(bytes), _mm_set1_epi8(48)),
        )
    };
    let scales = [low(s0, 63), low(s1, 63), six(r0, s0), six(r1, s1)];
    let offsets = [low(o0, 63), low(o1, 63), six(_mm_srli_epi16::<4>(r0), o0), six(_mm_srli_epi16::<4>(r1), o1)];
    // SAFETY: there are eight numbers of each.
    unsafe {
        let (d, m) = (_mm256_loadu_ps(d.as_ptr()), _mm256_loadu_ps(m.as_ptr()));
        for two in 0..4 {
            put_products(scales[two], d, &mut factors.scales[2 * two..]);
            put_products(offsets[two], m, &mut factors.offsets[2 * two..]);
        }
    }
}

/// Interleaves the bytes of eight rows: those of places 0 and 1, 2 and 3; 4 and 5, 6 and 7.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn bytes_by_eight(rows: [__m128i; HALF]) -> [[__m128i; 2]; 2] {
    let (a, b) = (_mm_unpacklo_epi8(rows[0], rows[1]), _mm_unpacklo_epi8(rows[4], rows[5]));
    let (c, d) = (_mm_unpacklo_epi8(rows[2], rows[3]), _mm_unpacklo_epi8(rows[6], rows[7]));
    let (low, other_low) = (_mm_unpacklo_epi16(a, c), _mm_unpacklo_epi16(b, d));
    let (high, other_high) = (_mm_unpackhi_epi16(a, c), _mm_unpackhi_epi16(b, d));
    [
        [_mm_unpacklo_epi32(low, other_low), _mm_unpackhi_epi32(low, other_low)],
        [_mm_unpacklo_epi32(high, other_high), _mm_unpackhi_epi32(high, other_high)],
    ]
}

/// Multiplies eight bytes, and the eight behind them, with numbers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn put_products(bytes: __m128i, by: __m256, out: &mut [[f32; HALF]]) {
    let both = [_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes))];
    for (out, bytes) in out.iter_mut().zip(both) {
        // SAFETY: there are eight numbers.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(_mm256_cvtepi32_ps(bytes), by)) };
    }
}
