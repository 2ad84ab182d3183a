//! Float products with AVX-512. See [`super`] for the order of summation.
#![expect(unsafe_code, reason = "SIMD")]
#![expect(clippy::needless_range_loop, reason = "the place in several arrays")]

use std::arch::x86_64::{
    __m128, __m128i, __m512, _mm_add_ps, _mm_loadu_si128, _mm_movehl_ps, _mm_movelh_ps, _mm_storeu_ps, _mm_unpackhi_ps,
    _mm_unpacklo_ps, _mm256_add_ps, _mm256_and_si256, _mm256_castps256_ps128, _mm256_cmpeq_epi16_mask,
    _mm256_cvtepi8_epi16, _mm256_extractf128_ps, _mm256_loadu_si256, _mm256_mask_blend_epi16, _mm256_set1_epi16,
    _mm256_slli_epi16, _mm512_castps512_ps256, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_extractf32x8_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_slli_epi32,
};

use super::kind::{self, BF16, E4M3, F16, F32};
use super::{GROUP, LANES, MANY, NumberFormat, WeightRows, sixteen};

/// Number of rows of weights in a tile.
pub(super) const ROWS: usize = 4;
/// Number of rows of x in a tile.
pub(super) const TOKENS: usize = 6;
/// Number of elements of x that stay in the cache for all rows of the weight.
pub(super) const CACHED: usize = 1 << 16;

/// Multiplies the rows with all rows of x.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn product(rows: WeightRows<'_>, x: &[f32], sums: &mut [[f32; GROUP]]) {
    match rows.kind {
        NumberFormat::F32 => of_kind::<F32>(rows, x, sums),
        NumberFormat::F16 => of_kind::<F16>(rows, x, sums),
        NumberFormat::Bf16 => of_kind::<BF16>(rows, x, sums),
        NumberFormat::E4m3 => of_kind::<E4M3>(rows, x, sums),
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn of_kind<const KIND: u8>(rows: WeightRows<'_>, x: &[f32], sums: &mut [[f32; GROUP]]) {
    if sums.len() < MANY {
        // Reads one row after another: sequential access is fastest.
        for (lane, row) in rows.all.iter().enumerate() {
            tokens_of::<KIND, 1>(rows, [row], lane, x, sums);
        }
        return;
    }
    let tokens = (CACHED / rows.columns).max(TOKENS) / TOKENS * TOKENS;
    for (x, sums) in x.chunks(tokens * rows.columns).zip(sums.chunks_mut(tokens)) {
        for (at, four) in rows.all.chunks(ROWS).enumerate() {
            // Missing rows are replaced by the last one, whose further results are ignored.
            let four = std::array::from_fn(|row| four[row.min(four.len() - 1)]);
            tokens_of::<KIND, ROWS>(rows, four, at * ROWS, x, sums);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn tokens_of<const KIND: u8, const R: usize>(
    rows: WeightRows<'_>,
    own: [&[u8]; R],
    lane: usize,
    x: &[f32],
    sums: &mut [[f32; GROUP]],
) {
    let columns = rows.columns;
    let mut at = 0;
    while at + TOKENS <= sums.len() {
        tile::<KIND, R, TOKENS>(rows, own, lane, &x[at * columns..], &mut sums[at..]);
        at += TOKENS;
    }
    while at + 2 <= sums.len() {
        tile::<KIND, R, 2>(rows, own, lane, &x[at * columns..], &mut sums[at..]);
        at += 2;
    }
    if at < sums.len() {
        tile::<KIND, R, 1>(rows, own, lane, &x[at * columns..], &mut sums[at..]);
    }
}

/// Multiplies R rows with N rows of x, and writes to `sums` from `lane` on.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn tile<const KIND: u8, const R: usize, const N: usize>(
    rows: WeightRows<'_>,
    all: [&[u8]; R],
    lane: usize,
    x: &[f32],
    sums: &mut [[f32; GROUP]],
) {
    let WeightRows { columns, .. } = rows;
    assert!(x.len() >= N * columns && all.iter().all(|row| row.len() == columns * kind::bytes(KIND)));
    let mut totals = [[_mm512_setzero_ps(); R]; N];
    let whole = columns / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let mut own = [_mm512_setzero_ps(); R];
        for row in 0..R {
            // SAFETY: sixteen numbers from `at` on are within rows, as was asserted.
            own[row] = unsafe { load::<KIND>(all[row].as_ptr().add(at * kind::bytes(KIND))) };
            if KIND == E4M3 {
                own[row] = _mm512_mul_ps(own[row], _mm512_set1_ps(rows.scale(lane + row, at)));
            }
        }
        for token in 0..N {
            // SAFETY: sixteen numbers from `at` on are within x, as was asserted.
            let x = unsafe { _mm512_loadu_ps(x.as_ptr().add(token * columns + at)) };
            for row in 0..R {
                totals[token][row] = _mm512_fmadd_ps(own[row], x, totals[token][row]);
            }
        }
    }
    if whole < columns {
        for (token, totals) in totals.iter_mut().enumerate() {
            let mut rest = [0.0; LANES];
            rest[..columns - whole].copy_from_slice(&x[token * columns + whole..(token + 1) * columns]);
            for (row, total) in totals.iter_mut().enumerate() {
                let own = sixteen(rows, (lane + row).min(rows.all.len() - 1), whole);
                // SAFETY: both have sixteen elements.
                *total =
                    unsafe { _mm512_fmadd_ps(_mm512_loadu_ps(own.as_ptr()), _mm512_loadu_ps(rest.as_ptr()), *total) };
            }
        }
    }
    for (totals, sums) in totals.into_iter().zip(sums) {
        put(totals, &mut sums[lane..lane + R]);
    }
}

/// Writes the sum of the lanes of each vector, of which there are at most four.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(super) fn put<const R: usize>(totals: [__m512; R], sums: &mut [f32]) {
    let mut four = [_mm512_setzero_ps(); ROWS];
    four[..R].copy_from_slice(&totals);
    let mut own = [0.0; ROWS];
    // SAFETY: there are four elements.
    unsafe { _mm_storeu_ps(own.as_mut_ptr(), total(four)) };
    sums.copy_from_slice(&own[..R]);
}

/// Loads sixteen numbers.
///
/// # Safety
/// They are readable.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn load<const KIND: u8>(from: *const u8) -> __m512 {
    // SAFETY: the caller guarantees that they are readable.
    unsafe {
        match KIND {
            F32 => _mm512_loadu_ps(from.cast()),
            F16 => _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())),
            E4M3 => e4m3(_mm_loadu_si128(from.cast())),
            _ => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))),
        }
    }
}

/// Decodes sixteen E4M3 numbers. As float16, the same exponent and mantissa bits are a number
/// smaller by a factor of 2⁸.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn e4m3(codes: __m128i) -> __m512 {
    // The sign bit is extended; its copy in the highest exponent bit is cleared.
    let half = _mm256_and_si256(_mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes)), _mm256_set1_epi16(!0x4000));
    let digits = _mm256_set1_epi16(0x7f << 7);
    let is_nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(half, digits), digits);
    let half = _mm256_mask_blend_epi16(is_nan, half, _mm256_set1_epi16(0x7e00));
    _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0))
}

/// Returns the sum of the lanes of each of four vectors.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn total([a, b, c, d]: [__m512; ROWS]) -> __m128 {
    let (a, b, c, d) = (four_of(a), four_of(b), four_of(c), four_of(d));
    let [ab, cd] = [
        _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b)),
        _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d)),
    ];
    _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab))
}

/// Adds up the lanes at distances of 4, 8 and 12.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn four_of(lanes: __m512) -> __m128 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes));
    _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
}
