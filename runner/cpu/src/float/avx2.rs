//! Float products with AVX2, FMA and F16C. See [`super`] for the order of summation.
#![expect(unsafe_code, reason = "SIMD")]

use std::arch::x86_64::{
    __m128i, __m256, _mm_add_ps, _mm_and_si128, _mm_cmpeq_epi16, _mm_cvtepi8_epi16, _mm_cvtss_f32, _mm_loadl_epi64,
    _mm_loadu_si128, _mm_movehl_ps, _mm_or_si128, _mm_set1_epi16, _mm_shuffle_ps, _mm_slli_epi16, _mm256_add_ps,
    _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_extractf128_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32,
};

use super::kind::{self, BF16, E4M3, F16, F32};
use super::{GROUP, LANES, NumberFormat, WeightRows, sixteen};

/// Number of rows of weights, and of rows of x, in a tile.
const TILE: usize = 2;
/// Number of lanes in a vector.
const WIDTH: usize = 8;

/// Multiplies the rows with all rows of x.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn product(rows: WeightRows<'_>, x: &[f32], sums: &mut [[f32; GROUP]]) {
    match rows.kind {
        NumberFormat::F32 => of_kind::<F32>(rows, x, sums),
        NumberFormat::F16 => of_kind::<F16>(rows, x, sums),
        NumberFormat::Bf16 => of_kind::<BF16>(rows, x, sums),
        NumberFormat::E4m3 => of_kind::<E4M3>(rows, x, sums),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn of_kind<const KIND: u8>(rows: WeightRows<'_>, x: &[f32], sums: &mut [[f32; GROUP]]) {
    for (x, sums) in x.chunks(TILE * rows.columns).zip(sums.chunks_mut(TILE)) {
        for (at, own) in rows.all.chunks(TILE).enumerate() {
            // A single row is computed twice; the second result is ignored.
            let own = [own[0], own[own.len() - 1]];
            if sums.len() == TILE {
                tile::<KIND, TILE>(rows, own, at * TILE, x, sums);
            } else {
                tile::<KIND, 1>(rows, own, at * TILE, x, sums);
            }
        }
    }
}

/// Multiplies two rows with N rows of x, and writes to `sums` from `lane` on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn tile<const KIND: u8, const N: usize>(
    rows: WeightRows<'_>,
    two: [&[u8]; TILE],
    lane: usize,
    x: &[f32],
    sums: &mut [[f32; GROUP]],
) {
    let WeightRows { columns, .. } = rows;
    assert!(x.len() >= N * columns && two.iter().all(|row| row.len() == columns * kind::bytes(KIND)));
    let mut totals = [[[_mm256_setzero_ps(); 2]; TILE]; N];
    let whole = columns / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: sixteen numbers from `at` on are within rows and x, as was asserted.
        let mut own = two.map(|row| unsafe {
            let row = row.as_ptr().add(at * kind::bytes(KIND));
            [load::<KIND>(row), load::<KIND>(row.add(WIDTH * kind::bytes(KIND)))]
        });
        if KIND == E4M3 {
            for (row, own) in own.iter_mut().enumerate() {
                let scale = _mm256_set1_ps(rows.scale(lane + row, at));
                *own = [_mm256_mul_ps(own[0], scale), _mm256_mul_ps(own[1], scale)];
            }
        }
        for (token, totals) in totals.iter_mut().enumerate() {
            // SAFETY: as above.
            let x = unsafe {
                let x = x.as_ptr().add(token * columns + at);
                [_mm256_loadu_ps(x), _mm256_loadu_ps(x.add(WIDTH))]
            };
            add(totals, own, x);
        }
    }
    if whole < columns {
        let own = [0, 1].map(|row| halves(&sixteen(rows, (lane + row).min(rows.all.len() - 1), whole)));
        for (token, totals) in totals.iter_mut().enumerate() {
            let mut rest = [0.0; LANES];
            rest[..columns - whole].copy_from_slice(&x[token * columns + whole..(token + 1) * columns]);
            add(totals, own, halves(&rest));
        }
    }
    for (totals, sums) in totals.into_iter().zip(sums) {
        for (sum, lanes) in sums[lane..].iter_mut().zip(totals) {
            *sum = total(lanes);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add(totals: &mut [[__m256; 2]; TILE], own: [[__m256; 2]; TILE], x: [__m256; 2]) {
    for (total, own) in totals.iter_mut().zip(own) {
        *total = [_mm256_fmadd_ps(own[0], x[0], total[0]), _mm256_fmadd_ps(own[1], x[1], total[1])];
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn halves(numbers: &[f32; LANES]) -> [__m256; 2] {
    // SAFETY: there are sixteen.
    unsafe { [_mm256_loadu_ps(numbers.as_ptr()), _mm256_loadu_ps(numbers.as_ptr().add(WIDTH))] }
}

/// Loads eight numbers.
///
/// # Safety
/// They are readable.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn load<const KIND: u8>(from: *const u8) -> __m256 {
    // SAFETY: the caller guarantees that they are readable.
    unsafe {
        match KIND {
            F32 => _mm256_loadu_ps(from.cast()),
            F16 => _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
            E4M3 => e4m3(_mm_loadl_epi64(from.cast())),
            _ => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())))),
        }
    }
}

/// Decodes eight E4M3 numbers. As float16, the same exponent and mantissa bits are a number smaller
/// by a factor of 2⁸.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn e4m3(codes: __m128i) -> __m256 {
    // The sign bit is extended; its copy in the highest exponent bit is cleared.
    let half = _mm_and_si128(_mm_slli_epi16::<7>(_mm_cvtepi8_epi16(codes)), _mm_set1_epi16(!0x4000));
    let digits = _mm_set1_epi16(0x7f << 7);
    let is_nan = _mm_cmpeq_epi16(_mm_and_si128(half, digits), digits);
    let half = _mm_or_si128(half, _mm_and_si128(is_nan, _mm_set1_epi16(0x7c00)));
    _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0))
}

/// Returns the sum of sixteen lanes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn total([low, high]: [__m256; 2]) -> f32 {
    let eight = _mm256_add_ps(low, high);
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ps(two, _mm_shuffle_ps::<1>(two, two)))
}
