//! Products of BF16 and FP8 weights with activations rounded to BF16, with AVX-512 BF16.
//!
//! A lane accumulates two adjacent elements at a time: `fma(w₀, x₀, fma(w₁, x₁, sum))`, rounded as
//! the instruction does, with subnormal numbers taken as zeros. Rows have a multiple of 32
//! elements. E4M3 numbers are exact in BF16, but their scales are not. So the product of each run
//! of 32 starts at zero, and is added to the sums after multiplication with its scale.
#![expect(unsafe_code, reason = "SIMD")]
#![expect(clippy::needless_range_loop, reason = "the place in several arrays")]

mod e4m3;

use std::arch::x86_64::{
    __m256bh, __m256i, __m512bh, __m512i, _MM_HINT_T1, _mm_prefetch, _mm256_storeu_si256, _mm512_cvtneps_pbh,
    _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_setzero_ps,
};

use formats::{Encoding, Weight};

use super::avx512::{CACHED, ROWS, TOKENS, put};
use super::{GROUP, LANES, MANY, NumberFormat, Scales, WeightRows, as_they_lie};
use crate::pool::{Pool, SharedSlice};

/// Number of elements that one instruction multiplies.
const RUN: usize = 2 * LANES;

/// Rows of x, rounded to BF16.
#[derive(Debug)]
pub struct Bf16Rows(Vec<u16>);

impl Bf16Rows {
    /// No rows.
    pub const EMPTY: Self = Self(Vec::new());

    /// Returns whether rows of `columns` elements can be multiplied.
    pub fn fits(columns: usize) -> bool {
        columns > 0 && columns.is_multiple_of(RUN)
    }

    /// Rounds `x`, `[m, columns]`, and replaces the previous rows.
    ///
    /// # Safety
    /// The machine has all instructions of the set `avx512-bf16`.
    pub unsafe fn fill(&mut self, pool: &Pool, x: &[f32], columns: usize) {
        assert!(Self::fits(columns), "whole runs");
        if self.0.len() < x.len() {
            self.0.resize(x.len(), 0);
        }
        let out = SharedSlice::new(&mut self.0);
        pool.run(x.len() / columns, |rows| {
            let own = rows.start * columns..rows.end * columns;
            // SAFETY: a region hands out each row once; the caller guarantees the instructions.
            unsafe { round(&x[own.clone()], out.range(own)) };
        });
    }

    /// Returns the elements of the rows from `row` on.
    pub fn after(&self, row: usize, columns: usize) -> &[u16] {
        &self.0[row * columns..]
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
fn round(x: &[f32], out: &mut [u16]) {
    for (x, out) in x.as_chunks::<LANES>().0.iter().zip(out.as_chunks_mut::<LANES>().0) {
        // SAFETY: there are sixteen of both; the vector types have the same bits.
        unsafe {
            let rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x.as_ptr()));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), std::mem::transmute::<__m256bh, __m256i>(rounded));
        }
    }
}

/// Returns whether weights of this encoding, with rows of `columns` elements, can be multiplied
/// here.
pub fn takes(encoding: Encoding, columns: usize) -> bool {
    let is_taken = match NumberFormat::of(encoding) {
        Some(NumberFormat::Bf16) => true,
        Some(NumberFormat::E4m3) => encoding.group_size() as usize >= RUN,
        _ => false,
    };
    is_taken && Bf16Rows::fits(columns)
}

/// Scratch memory for a few rows of a weight.
#[derive(Debug)]
pub struct RowScratch {
    /// FP8 numbers as BF16.
    numbers: Vec<u16>,
    scales: Vec<f32>,
}

impl RowScratch {
    /// Empty buffers; they only grow.
    pub const EMPTY: Self = Self { numbers: Vec::new(), scales: Vec::new() };
}

/// Multiplies up to 16 rows of a weight with all rounded rows of x.
///
/// # Panics
/// [`takes`] is false for the weight.
///
/// # Safety
/// The machine has the instruction set AVX-512-BF16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
pub fn products(
    weight: &Weight<'_>,
    rows: impl ExactSizeIterator<Item = usize> + Clone,
    x: &[u16],
    room: &mut RowScratch,
    sums: &mut [[f32; GROUP]],
) {
    let (count, columns, encoding) = (rows.len().min(GROUP), weight.columns(), weight.encoding());
    let kind = NumberFormat::of(encoding)
        .filter(|_| takes(encoding, columns))
        .expect("invariant: the caller has checked `takes`");
    let (own, scales) = as_they_lie(weight, kind, rows, &mut room.scales);
    let (own, x) = (&own[..count], &x[..sums.len() * columns]);
    if kind == NumberFormat::E4m3 {
        e4m3::products(WeightRows { kind, all: own, columns, scales }, x, &mut room.numbers, sums);
    } else {
        of_bf16(own, columns, x, sums);
    }
}

/// Multiplies up to 16 rows of BF16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
fn of_bf16(rows: &[&[u8]], columns: usize, x: &[u16], sums: &mut [[f32; GROUP]]) {
    if sums.len() < MANY {
        // Reads one row after another: sequential access is fastest.
        for (lane, row) in rows.iter().enumerate() {
            tokens::<1>([row], lane, columns, x, sums);
        }
        return;
    }
    let many = at_a_time::<TOKENS>(columns);
    for (x, sums) in x.chunks(many * columns).zip(sums.chunks_mut(many)) {
        for (at, four) in rows.chunks(ROWS).enumerate() {
            let mut own = [four[0]; ROWS];
            own[..four.len()].copy_from_slice(four);
            tokens::<ROWS>(own, at * ROWS, columns, x, sums);
        }
    }
}

/// Returns the number of rows of x, in whole tiles, that stay in the cache for all rows of the
/// weight.
fn at_a_time<const TOKENS: usize>(columns: usize) -> usize {
    (2 * CACHED / columns).max(TOKENS) / TOKENS * TOKENS
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
fn tokens<const R: usize>(own: [&[u8]; R], lane: usize, columns: usize, x: &[u16], sums: &mut [[f32; GROUP]]) {
    let mut at = 0;
    if R > 1 && sums.len() >= TOKENS {
        tile::<R, TOKENS, true>(own, lane, columns, x, sums);
        at = TOKENS;
    }
    while at + TOKENS <= sums.len() {
        tile::<R, TOKENS, false>(own, lane, columns, &x[at * columns..], &mut sums[at..]);
        at += TOKENS;
    }
    while at + 2 <= sums.len() {
        tile::<R, 2, false>(own, lane, columns, &x[at * columns..], &mut sums[at..]);
        at += 2;
    }
    if at < sums.len() {
        tile::<R, 1, false>(own, lane, columns, &x[at * columns..], &mut sums[at..]);
    }
}

/// Multiplies R rows with N rows of x, and writes to `sums` from `lane` on. The first tile
/// prefetches the next rows.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
#[inline]
fn tile<const R: usize, const N: usize, const FIRST: bool>(
    all: [&[u8]; R],
    lane: usize,
    columns: usize,
    x: &[u16],
    sums: &mut [[f32; GROUP]],
) {
    assert!(columns.is_multiple_of(RUN) && x.len() >= N * columns && all.iter().all(|row| row.len() == 2 * columns));
    let mut totals = [[_mm512_setzero_ps(); R]; N];
    for at in (0..columns).step_by(RUN) {
        let mut own = [zeros(); R];
        for row in 0..R {
            if FIRST {
                // Prefetches the next rows, which likely follow these. The instruction never
                // faults.
                _mm_prefetch::<_MM_HINT_T1>(all[row].as_ptr().wrapping_add(2 * (R * columns + at)).cast());
            }
            // SAFETY: a run from `at` on is within rows, as was asserted.
            own[row] = unsafe { load(all[row].as_ptr().add(2 * at)) };
        }
        for token in 0..N {
            // SAFETY: a run from `at` on is within x, as was asserted.
            let x = unsafe { load(x.as_ptr().add(token * columns + at).cast()) };
            for row in 0..R {
                totals[token][row] = _mm512_dpbf16_ps(totals[token][row], own[row], x);
            }
        }
    }
    for (totals, sums) in totals.into_iter().zip(sums) {
        put(totals, &mut sums[lane..lane + R]);
    }
}

#[inline]
fn zeros() -> __m512bh {
    // SAFETY: all bit patterns are valid.
    unsafe { std::mem::zeroed() }
}

/// Loads 32 numbers.
///
/// # Safety
/// They are readable.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
#[inline]
unsafe fn load(from: *const u8) -> __m512bh {
    // SAFETY: the caller guarantees that they are readable; the vector types have the same bits.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(from.cast())) }
}
