//! Rows of a KV cache with AVX-512, for several queries at once and rows that consist of whole
//! blocks.
#![expect(unsafe_code, reason = "SIMD")]
#![expect(clippy::needless_range_loop, reason = "the place in several arrays")]

use std::arch::x86_64::{
    __m512, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadu_si128, _mm256_loadu_si256, _mm512_add_ps,
    _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_slli_epi32, _mm512_storeu_ps,
};

use protocol::KvType;

use super::kind::{BF16, F16, F32, Q8_0, block_bytes};
use super::{BLOCK, CacheRows};

/// Number of elements in a vector.
const LANES: usize = 16;
/// Greatest number of queries that are computed together.
const QUERIES: usize = 4;

/// Calls the kernel for the type of the rows and the number of queries left, at most four.
macro_rules! for_each_queries {
    ($kernel:ident, $kind:expr, $left:ident, $arguments:tt) => {
        match ($kind, $left.min(QUERIES)) {
            (KvType::F32, 1) => $kernel::<F32, 1>$arguments,
            (KvType::F32, 2) => $kernel::<F32, 2>$arguments,
            (KvType::F32, 3) => $kernel::<F32, 3>$arguments,
            (KvType::F32, _) => $kernel::<F32, 4>$arguments,
            (KvType::F16, 1) => $kernel::<F16, 1>$arguments,
            (KvType::F16, 2) => $kernel::<F16, 2>$arguments,
            (KvType::F16, 3) => $kernel::<F16, 3>$arguments,
            (KvType::F16, _) => $kernel::<F16, 4>$arguments,
            (KvType::Bf16, 1) => $kernel::<BF16, 1>$arguments,
            (KvType::Bf16, 2) => $kernel::<BF16, 2>$arguments,
            (KvType::Bf16, 3) => $kernel::<BF16, 3>$arguments,
            (KvType::Bf16, _) => $kernel::<BF16, 4>$arguments,
            (KvType::Q8_0, 1) => $kernel::<Q8_0, 1>$arguments,
            (KvType::Q8_0, 2) => $kernel::<Q8_0, 2>$arguments,
            (KvType::Q8_0, 3) => $kernel::<Q8_0, 3>$arguments,
            (KvType::Q8_0, _) => $kernel::<Q8_0, 4>$arguments,
        }
    };
}

/// See [`CacheRows::dots`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn dots(rows: CacheRows<'_>, queries: &[f32], out: &mut [f32], stride: usize) {
    let count = queries.len() / rows.columns;
    for first in (0..count).step_by(QUERIES) {
        let (left, queries, out) = (count - first, &queries[first * rows.columns..], &mut out[first * stride..]);
        for_each_queries!(dots_of, rows.kv_type, left, (rows, queries, out, stride));
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn dots_of<const KIND: u8, const N: usize>(rows: CacheRows<'_>, queries: &[f32], out: &mut [f32], stride: usize) {
    let columns = rows.columns;
    assert!(queries.len() >= N * columns && out.len() >= (N - 1) * stride + rows.len());
    for (at, row) in rows.bytes.chunks_exact(rows.row_bytes).enumerate() {
        let mut sums = [[_mm512_setzero_ps(); 2]; N];
        for (index, block) in row.chunks_exact(block_bytes(KIND)).take(columns / BLOCK).enumerate() {
            let [low, high] = load::<KIND>(block);
            for query in 0..N {
                // SAFETY: the next 32 elements are within the query, as was asserted.
                let x = unsafe {
                    let x = queries.as_ptr().add(query * columns + index * BLOCK);
                    [_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(LANES))]
                };
                sums[query][0] = _mm512_fmadd_ps(x[0], low, sums[query][0]);
                sums[query][1] = _mm512_fmadd_ps(x[1], high, sums[query][1]);
            }
        }
        for (query, sums) in sums.into_iter().enumerate() {
            out[query * stride + at] = _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]));
        }
    }
}

/// See [`CacheRows::mixes`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn mixes(rows: CacheRows<'_>, weights: &[f32], weights_stride: usize, out: &mut [f32], stride: usize) {
    let count = out.len().div_ceil(stride);
    for first in (0..count).step_by(QUERIES) {
        let (left, weights, out) = (count - first, &weights[first * weights_stride..], &mut out[first * stride..]);
        for_each_queries!(mixes_of, rows.kv_type, left, (rows, weights, weights_stride, out, stride));
    }
}

/// Goes block by block, so that the sums stay in registers.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn mixes_of<const KIND: u8, const N: usize>(
    rows: CacheRows<'_>,
    weights: &[f32],
    weights_stride: usize,
    out: &mut [f32],
    stride: usize,
) {
    assert!(weights.len() >= (N - 1) * weights_stride + rows.len() && out.len() >= (N - 1) * stride + rows.columns);
    for index in 0..rows.columns / BLOCK {
        let mut sums = [[_mm512_setzero_ps(); 2]; N];
        for (at, row) in rows.bytes.chunks_exact(rows.row_bytes).enumerate() {
            let [low, high] = load::<KIND>(&row[index * block_bytes(KIND)..]);
            for query in 0..N {
                let weight = _mm512_set1_ps(weights[query * weights_stride + at]);
                sums[query][0] = _mm512_fmadd_ps(weight, low, sums[query][0]);
                sums[query][1] = _mm512_fmadd_ps(weight, high, sums[query][1]);
            }
        }
        for (query, sums) in sums.into_iter().enumerate() {
            let out = &mut out[query * stride + index * BLOCK..][..BLOCK];
            // SAFETY: there are 32 elements.
            unsafe {
                let out = out.as_mut_ptr();
                _mm512_storeu_ps(out, _mm512_add_ps(sums[0], _mm512_loadu_ps(out)));
                _mm512_storeu_ps(out.add(LANES), _mm512_add_ps(sums[1], _mm512_loadu_ps(out.add(LANES))));
            }
        }
    }
}

/// Decodes a block to float32.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn load<const KIND: u8>(bytes: &[u8]) -> [__m512; 2] {
    assert!(bytes.len() >= block_bytes(KIND));
    let start = bytes.as_ptr();
    let mut block = [_mm512_setzero_ps(); 2];
    for (half, vector) in block.iter_mut().enumerate() {
        // SAFETY: a block of this kind is there, and this reads its sixteen elements from
        // `16 · half` on.
        *vector = unsafe {
            match KIND {
                F32 => _mm512_loadu_ps(start.add(half * 64).cast()),
                F16 => _mm512_cvtph_ps(_mm256_loadu_si256(start.add(half * 32).cast())),
                BF16 => {
                    let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(start.add(half * 32).cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
                }
                _ => _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(start.add(2 + half * 16).cast()))),
            }
        };
    }
    if KIND == Q8_0 {
        let bits = i32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let scale = _mm512_set1_ps(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))));
        for vector in &mut block {
            *vector = _mm512_mul_ps(*vector, scale);
        }
    }
    block
}
