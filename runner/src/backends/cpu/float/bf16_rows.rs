//! Products of BF16 and FP8 weights with activations rounded to BF16, with AVX-512 BF16.
//!
//! A lane gets two neighbouring elements at a time, `fma(w₀, x₀, fma(w₁, x₁, sum))` as the instruction rounds it:
//! subnormal numbers count as zeros. Rows are whole runs of 32 elements. E4M3 numbers are BF16 numbers, too; their scales
//! are not: the products of each run begin at zero, and are added to the sums times its scale.
#![expect(unsafe_code, reason = "SIMD")]
#![expect(clippy::needless_range_loop, reason = "the place in several arrays")]

mod e4m3;

use std::arch::x86_64::{
    __m256bh, __m256i, __m512bh, __m512i, _MM_HINT_T1, _mm_prefetch, _mm256_storeu_si256, _mm512_cvtneps_pbh,
    _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_setzero_ps,
};

use formats::{Encoding, Weight};

use super::avx512::{CACHED, ROWS, TOKENS, put};
use super::{GROUP, Kind, LANES, MANY, Rows, Scales, as_they_lie};
use crate::pool::{Pool, SharedSlice};

/// Elements that are multiplied at a time.
const RUN: usize = 2 * LANES;

/// Rows of x, rounded to BF16.
#[derive(Debug)]
pub(in crate::backends::cpu) struct Bf16Rows(Vec<u16>);

impl Bf16Rows {
    /// None.
    pub(in crate::backends::cpu) const EMPTY: Self = Self(Vec::new());

    /// Whether rows of so many elements can be multiplied.
    pub(in crate::backends::cpu) fn fits(columns: usize) -> bool {
        columns > 0 && columns.is_multiple_of(RUN)
    }

    /// Rounds `x` of `[m, columns]` in the place of what is here.
    ///
    /// # Safety
    /// The machine has all instructions of the set `avx512-bf16`.
    pub(in crate::backends::cpu) unsafe fn fill(&mut self, pool: &Pool, x: &[f32], columns: usize) {
        assert!(Self::fits(columns), "whole runs");
        if self.0.len() < x.len() {
            self.0.resize(x.len(), 0);
        }
        let out = SharedSlice::new(&mut self.0);
        pool.run(x.len() / columns, |rows| {
            let own = rows.start * columns..rows.end * columns;
            // SAFETY: a region hands out each row once; the caller says that the instructions are here.
            unsafe { round(&x[own.clone()], out.range(own)) };
        });
    }

    /// The elements of the rows from one of them on.
    pub(in crate::backends::cpu) fn after(&self, row: usize, columns: usize) -> &[u16] {
        &self.0[row * columns..]
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
fn round(x: &[f32], out: &mut [u16]) {
    for (x, out) in x.as_chunks::<LANES>().0.iter().zip(out.as_chunks_mut::<LANES>().0) {
        // SAFETY: there are sixteen of both; the vectors are the same bits.
        unsafe {
            let rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x.as_ptr()));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), std::mem::transmute::<__m256bh, __m256i>(rounded));
        }
    }
}

/// Whether weights of an encoding, of rows of so many elements, are multiplied so.
pub(in crate::backends::cpu) fn takes(encoding: Encoding, columns: usize) -> bool {
    let is_taken = match Kind::of(encoding) {
        Some(Kind::Bf16) => true,
        Some(Kind::E4m3) => encoding.group_size() as usize >= RUN,
        _ => false,
    };
    is_taken && Bf16Rows::fits(columns)
}

/// Memory for a few rows of a weight.
#[derive(Debug)]
pub(in crate::backends::cpu) struct Room {
    /// FP8 numbers as BF16.
    numbers: Vec<u16>,
    scales: Vec<f32>,
}

impl Room {
    /// None; it is only added.
    pub(in crate::backends::cpu) const EMPTY: Self = Self { numbers: Vec::new(), scales: Vec::new() };
}

/// The products of up to 16 rows of a weight with all rows of x, rounded.
///
/// # Panics
/// The weight is not [taken](takes).
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
pub(in crate::backends::cpu) fn products(
    weight: &Weight<'_>,
    rows: impl ExactSizeIterator<Item = usize> + Clone,
    x: &[u16],
    room: &mut Room,
    sums: &mut [[f32; GROUP]],
) {
    let (count, columns, encoding) = (rows.len().min(GROUP), weight.columns(), weight.encoding());
    let kind = Kind::of(encoding).filter(|_| takes(encoding, columns)).expect("who multiplies so has asked for it");
    let (own, scales) = as_they_lie(weight, kind, rows, &mut room.scales);
    let (own, x) = (&own[..count], &x[..sums.len() * columns]);
    if kind == Kind::E4m3 {
        e4m3::products(Rows { kind, all: own, columns, scales }, x, &mut room.numbers, sums);
    } else {
        of_bf16(own, columns, x, sums);
    }
}

/// The products of up to 16 rows of BF16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
fn of_bf16(rows: &[&[u8]], columns: usize, x: &[u16], sums: &mut [[f32; GROUP]]) {
    if sums.len() < MANY {
        // Rows are read one after the other, as memory likes it.
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

/// Rows of x, whole tiles, that stay in the cache while all rows of weights pass.
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

/// The products of R rows with N rows of x, to lanes of `sums` from `lane` on; the first time, what comes next is asked for.
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
                // The next rows, which are likely to lie behind these. The instruction reads nothing.
                _mm_prefetch::<_MM_HINT_T1>(all[row].as_ptr().wrapping_add(2 * (R * columns + at)).cast());
            }
            // SAFETY: a run from `at` on is within rows, as was asserted.
            own[row] = unsafe { load(all[row].as_ptr().add(2 * at)) };
        }
        for token in 0..N {
            // SAFETY: and within x.
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
    // SAFETY: any bits are numbers.
    unsafe { std::mem::zeroed() }
}

/// 32 numbers.
///
/// # Safety
/// They are readable.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
#[inline]
unsafe fn load(from: *const u8) -> __m512bh {
    // SAFETY: as the caller says; the vectors are the same bits.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(from.cast())) }
}
