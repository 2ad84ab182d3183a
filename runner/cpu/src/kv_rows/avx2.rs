//! Rows of a KV cache with AVX2, FMA and F16C, for rows that consist of whole blocks.
#![expect(unsafe_code, reason = "SIMD")]

use std::arch::x86_64::{
    __m256, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadl_epi64, _mm_loadu_si128, _mm256_add_epi32,
    _mm256_add_ps, _mm256_castsi256_ps, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu16_epi32,
    _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_loadu_ps, _mm256_max_ps,
    _mm256_mul_ps, _mm256_round_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32,
    _mm256_storeu_ps, _mm256_sub_ps,
};

use protocol::KvType;

use super::kind::{BF16, F16, F32, Q8_0, block_bytes};
use super::{BLOCK, CacheRows, exponentials_generic};

/// Number of elements in a vector.
const LANES: usize = 8;
/// Number of vectors in a block.
const VECTORS: usize = BLOCK / LANES;

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot(rows: CacheRows<'_>, query: &[f32], out: &mut [f32]) {
    match rows.kv_type {
        KvType::F32 => dot_of::<F32>(rows, query, out),
        KvType::F16 => dot_of::<F16>(rows, query, out),
        KvType::Bf16 => dot_of::<BF16>(rows, query, out),
        KvType::Q8_0 => dot_of::<Q8_0>(rows, query, out),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn dot_of<const KIND: u8>(rows: CacheRows<'_>, query: &[f32], out: &mut [f32]) {
    for (out, row) in out.iter_mut().zip(rows.bytes.chunks_exact(rows.row_bytes)) {
        let mut sums = [_mm256_setzero_ps(); VECTORS];
        for (query, block) in query.chunks_exact(BLOCK).zip(row.chunks_exact(block_bytes(KIND))) {
            let block = load::<KIND>(block);
            for lane in 0..VECTORS {
                sums[lane] = _mm256_fmadd_ps(floats(&query[lane * LANES..]), block[lane], sums[lane]);
            }
        }
        let sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
        *out = total(sum);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn mix(rows: CacheRows<'_>, weights: &[f32], out: &mut [f32]) {
    match rows.kv_type {
        KvType::F32 => mix_of::<F32>(rows, weights, out),
        KvType::F16 => mix_of::<F16>(rows, weights, out),
        KvType::Bf16 => mix_of::<BF16>(rows, weights, out),
        KvType::Q8_0 => mix_of::<Q8_0>(rows, weights, out),
    }
}

/// Goes block by block, so that the sums stay in registers.
#[target_feature(enable = "avx2,fma,f16c")]
fn mix_of<const KIND: u8>(rows: CacheRows<'_>, weights: &[f32], out: &mut [f32]) {
    for (index, out) in out.chunks_exact_mut(BLOCK).enumerate() {
        let mut sums = [floats(out), floats(&out[LANES..]), floats(&out[2 * LANES..]), floats(&out[3 * LANES..])];
        for (weight, row) in weights.iter().zip(rows.bytes.chunks_exact(rows.row_bytes)) {
            let weight = _mm256_set1_ps(*weight);
            let block = load::<KIND>(&row[index * block_bytes(KIND)..]);
            for lane in 0..VECTORS {
                sums[lane] = _mm256_fmadd_ps(weight, block[lane], sums[lane]);
            }
        }
        store(sums, out);
    }
}

/// Decodes the whole blocks of each row.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn decode(rows: CacheRows<'_>, out: &mut [f32]) {
    match rows.kv_type {
        KvType::F32 => decode_of::<F32>(rows, out),
        KvType::F16 => decode_of::<F16>(rows, out),
        KvType::Bf16 => decode_of::<BF16>(rows, out),
        KvType::Q8_0 => decode_of::<Q8_0>(rows, out),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn decode_of<const KIND: u8>(rows: CacheRows<'_>, out: &mut [f32]) {
    for (out, row) in out.chunks_exact_mut(rows.columns).zip(rows.bytes.chunks_exact(rows.row_bytes)) {
        for (out, block) in out.chunks_exact_mut(BLOCK).zip(row.chunks_exact(block_bytes(KIND))) {
            store(load::<KIND>(block), out);
        }
    }
}

/// See [`super::exponentials`]. With `n = round(x / ln 2)` and `r = x - n·ln 2`,
/// `exp(x) = 2ⁿ · exp(r)`. For `|r| ≤ ln 2 / 2`, a polynomial approximates `exp(r)`: Cephes' `expf`
/// (Moshier), which is off by at most 2 units in the last place.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn exponentials(x: &mut [f32], largest: f32) -> f32 {
    let mut sums = _mm256_setzero_ps();
    let whole = x.len() / LANES * LANES;
    let (vectors, rest) = x.split_at_mut(whole);
    for x in vectors.chunks_exact_mut(LANES) {
        let y = exponential(_mm256_sub_ps(floats(x), _mm256_set1_ps(largest)));
        sums = _mm256_add_ps(sums, y);
        // SAFETY: the chunk has eight elements.
        unsafe { _mm256_storeu_ps(x.as_mut_ptr(), y) };
    }
    total(sums) + exponentials_generic(rest, largest)
}

/// The coefficients of r⁷ … r².
const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
/// `ln 2` in two parts. The first has few digits, so that its product with n is exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// Below this, `2ⁿ` is not a normal number.
const LEAST: f32 = -87.0;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn exponential(x: __m256) -> __m256 {
    // The order of the operands keeps NaN.
    let x = _mm256_max_ps(_mm256_set1_ps(LEAST), x);
    let n = _mm256_round_ps::<8>(_mm256_mul_ps(x, _mm256_set1_ps(std::f32::consts::LOG2_E)));
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2[0]), x);
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2[1]), r);
    let mut sum = _mm256_set1_ps(POLYNOMIAL[0]);
    for coefficient in &POLYNOMIAL[1..] {
        sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(*coefficient));
    }
    let y = _mm256_add_ps(_mm256_fmadd_ps(sum, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0));
    let power = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)));
    _mm256_mul_ps(y, _mm256_castsi256_ps(power))
}

/// Decodes a block to float32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load<const KIND: u8>(bytes: &[u8]) -> [__m256; VECTORS] {
    assert!(bytes.len() >= block_bytes(KIND));
    let start = bytes.as_ptr();
    let mut block = [_mm256_setzero_ps(); VECTORS];
    for (lane, vector) in block.iter_mut().enumerate() {
        // SAFETY: a block of this kind is there, and this reads its eight elements from `8 · lane`
        // on.
        *vector = unsafe {
            match KIND {
                F32 => _mm256_loadu_ps(start.add(lane * 32).cast()),
                F16 => _mm256_cvtph_ps(_mm_loadu_si128(start.add(lane * 16).cast())),
                BF16 => {
                    let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(start.add(lane * 16).cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                }
                _ => _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(start.add(2 + lane * 8).cast()))),
            }
        };
    }
    if KIND == Q8_0 {
        let bits = i32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let scale = _mm256_set1_ps(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))));
        for vector in &mut block {
            *vector = _mm256_mul_ps(*vector, scale);
        }
    }
    block
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn floats(x: &[f32]) -> __m256 {
    assert!(x.len() >= LANES);
    // SAFETY: there are eight elements.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store(block: [__m256; VECTORS], out: &mut [f32]) {
    assert!(out.len() >= BLOCK);
    for (lane, vector) in block.into_iter().enumerate() {
        // SAFETY: there is room for a block.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(lane * LANES), vector) };
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn total(sum: __m256) -> f32 {
    let mut lanes = [0.0f32; LANES];
    // SAFETY: the array has room for eight elements.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
    lanes.iter().sum()
}
