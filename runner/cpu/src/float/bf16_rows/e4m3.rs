//! Rows of E4M3 numbers with scales. The numbers are exact in BF16; a table converts 64 at a time.
#![expect(unsafe_code, reason = "SIMD")]
#![expect(clippy::needless_range_loop, reason = "the place in several arrays")]

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_and_si512, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_si512,
    _mm512_maskz_loadu_epi8, _mm512_or_si512, _mm512_permutex2var_epi8, _mm512_permutexvar_epi64, _mm512_set1_epi8,
    _mm512_set1_ps, _mm512_setr_epi64, _mm512_setzero_ps, _mm512_storeu_si512, _mm512_unpackhi_epi8,
    _mm512_unpacklo_epi8,
};

use super::{GROUP, MANY, ROWS, RUN, Scales, WeightRows, at_a_time, load, put, zeros};

/// Number of codes that are converted at a time.
const CODES: usize = 2 * RUN;
/// Number of rows of x in a tile.
const TOKENS: usize = 4;

/// The lower bytes of the BF16 numbers of codes without a sign, and the upper bytes.
static BYTES: [[u8; 128]; 2] = [bytes(0), bytes(8)];

/// Returns one byte of the BF16 number of each code.
const fn bytes(shift: u32) -> [u8; 128] {
    let mut all = [0; 128];
    let mut code = 0;
    while code < 128 {
        let bits: u32 = match code {
            0x7f => 0x7fc0,
            // Subnormal numbers, in steps of 2^-9.
            0..8 => (code as f32 / 512.0).to_bits() >> 16,
            // The same mantissa; the exponent bias is 127 instead of 7.
            _ => (code << 4) + (120 << 7),
        };
        all[code as usize] = (bits >> shift) as u8;
        code += 1;
    }
    all
}

/// Parameters of a tile of rows.
#[derive(Clone, Copy)]
struct Tile<'a, const R: usize> {
    columns: usize,
    scales: [&'a [f32]; R],
    /// Base-2 logarithm of the number of elements that share a scale.
    shift: u32,
    /// Column of `sums` for the first row.
    lane: usize,
}

/// Multiplies up to 16 rows with all rows of x. `room` is scratch memory for some rows as BF16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
pub(super) fn products(rows: WeightRows<'_>, x: &[u16], room: &mut Vec<u16>, sums: &mut [[f32; GROUP]]) {
    let WeightRows { all: rows, columns, scales: Scales { all, groups, shift }, .. } = rows;
    let scales_of = |row: usize| &all[row * groups..(row + 1) * groups];
    if sums.len() < MANY {
        // Reads one row after another: sequential access is fastest.
        for (lane, row) in rows.iter().enumerate() {
            few(Tile { columns, scales: [scales_of(lane)], shift, lane }, row, x, sums);
        }
        return;
    }
    if room.len() < ROWS * columns {
        room.resize(ROWS * columns, 0);
    }
    let numbers = &mut room[..ROWS * columns];
    let tokens = at_a_time::<TOKENS>(columns);
    for (x, sums) in x.chunks(tokens * columns).zip(sums.chunks_mut(tokens)) {
        for (at, four) in rows.chunks(ROWS).enumerate() {
            for (row, numbers) in four.iter().zip(numbers.chunks_exact_mut(columns)) {
                expand(row, numbers);
            }
            // Missing rows keep the previous numbers; their results are ignored.
            let scales = std::array::from_fn(|row| scales_of(at * ROWS + row.min(four.len() - 1)));
            many(Tile { columns, scales, shift, lane: at * ROWS }, numbers, x, sums);
        }
    }
}

/// Multiplies a row with a few rows of x.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
fn few(tile: Tile<'_, 1>, row: &[u8], x: &[u16], sums: &mut [[f32; GROUP]]) {
    let mut at = 0;
    while at + TOKENS <= sums.len() {
        as_it_lies::<TOKENS>(tile, row, &x[at * tile.columns..], &mut sums[at..]);
        at += TOKENS;
    }
    while at + 2 <= sums.len() {
        as_it_lies::<2>(tile, row, &x[at * tile.columns..], &mut sums[at..]);
        at += 2;
    }
    if at < sums.len() {
        as_it_lies::<1>(tile, row, &x[at * tile.columns..], &mut sums[at..]);
    }
}

/// Multiplies a row with N rows of x.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
#[inline]
fn as_it_lies<const N: usize>(tile: Tile<'_, 1>, row: &[u8], x: &[u16], sums: &mut [[f32; GROUP]]) {
    let Tile { columns, scales: [scales], shift, lane } = tile;
    assert!(columns.is_multiple_of(RUN) && row.len() == columns && x.len() >= N * columns);
    let mut totals = [_mm512_setzero_ps(); N];
    let mut add = |at: usize, own: __m512bh| {
        let scale = scales[at >> shift];
        for token in 0..N {
            // SAFETY: a run from `at` on is within x, as was asserted.
            let x = unsafe { load(x.as_ptr().add(token * columns + at).cast()) };
            totals[token] = added(totals[token], own, x, scale);
        }
    };
    let whole = columns / CODES * CODES;
    for at in (0..whole).step_by(CODES) {
        // SAFETY: at least `CODES` codes are left.
        let [first, second] = numbers(unsafe { _mm512_loadu_si512(row.as_ptr().add(at).cast()) });
        add(at, first);
        add(at + RUN, second);
    }
    if whole < columns {
        // SAFETY: half as many codes are left; the mask loads no more.
        let [last, _] = numbers(unsafe { _mm512_maskz_loadu_epi8(u64::MAX >> RUN, row.as_ptr().add(whole).cast()) });
        add(whole, last);
    }
    for (total, sums) in totals.into_iter().zip(sums) {
        put([total], &mut sums[lane..=lane]);
    }
}

/// Multiplies four expanded rows with many rows of x.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
fn many(tile: Tile<'_, ROWS>, numbers: &[u16], x: &[u16], sums: &mut [[f32; GROUP]]) {
    let mut at = 0;
    while at + TOKENS <= sums.len() {
        expanded::<TOKENS>(tile, numbers, &x[at * tile.columns..], &mut sums[at..]);
        at += TOKENS;
    }
    while at < sums.len() {
        expanded::<1>(tile, numbers, &x[at * tile.columns..], &mut sums[at..]);
        at += 1;
    }
}

/// Multiplies four expanded rows with N rows of x.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
#[inline]
fn expanded<const N: usize>(tile: Tile<'_, ROWS>, numbers: &[u16], x: &[u16], sums: &mut [[f32; GROUP]]) {
    let Tile { columns, scales, shift, lane } = tile;
    assert!(columns.is_multiple_of(RUN) && numbers.len() == ROWS * columns && x.len() >= N * columns);
    let mut totals = [[_mm512_setzero_ps(); ROWS]; N];
    for at in (0..columns).step_by(RUN) {
        let (mut own, mut factors) = ([zeros(); ROWS], [0.0; ROWS]);
        for row in 0..ROWS {
            // SAFETY: a run from `at` on is within rows, as was asserted.
            own[row] = unsafe { load(numbers.as_ptr().add(row * columns + at).cast()) };
            factors[row] = scales[row][at >> shift];
        }
        for token in 0..N {
            // SAFETY: a run from `at` on is within x, as was asserted.
            let x = unsafe { load(x.as_ptr().add(token * columns + at).cast()) };
            for row in 0..ROWS {
                totals[token][row] = added(totals[token][row], own[row], x, factors[row]);
            }
        }
    }
    for (totals, sums) in totals.into_iter().zip(sums) {
        put(totals, &mut sums[lane..lane + ROWS]);
    }
}

/// Returns `total + scale · (own · x)`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
#[inline]
fn added(total: __m512, own: __m512bh, x: __m512bh, scale: f32) -> __m512 {
    _mm512_fmadd_ps(_mm512_dpbf16_ps(_mm512_setzero_ps(), own, x), _mm512_set1_ps(scale), total)
}

/// Converts a row to BF16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
fn expand(row: &[u8], out: &mut [u16]) {
    assert!(row.len() == out.len() && row.len().is_multiple_of(RUN), "whole runs");
    for (codes, out) in row.chunks(CODES).zip(out.chunks_mut(CODES)) {
        // SAFETY: as many codes are loaded as there are, and as many numbers are stored.
        unsafe {
            let [first, second] =
                numbers(_mm512_maskz_loadu_epi8(u64::MAX >> (CODES - codes.len()), codes.as_ptr().cast()));
            store(first, out);
            if out.len() == CODES {
                store(second, &mut out[RUN..]);
            }
        }
    }
}

/// Stores 32 numbers at the start of `out`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
#[inline]
fn store(numbers: __m512bh, out: &mut [u16]) {
    let out = &mut out[..RUN];
    // SAFETY: there is room for them; the vector types have the same bits.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), std::mem::transmute::<__m512bh, __m512i>(numbers)) };
}

/// Converts 64 codes to BF16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
#[inline]
fn numbers(codes: __m512i) -> [__m512bh; 2] {
    // Interleaves the 8-byte groups of both halves, so that unpacking within 128-bit lanes gives
    // the numbers in order.
    let codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes);
    let byte = |upper: usize| {
        // SAFETY: a table has 128 bytes.
        let [first, second] = unsafe {
            let table = BYTES[upper].as_ptr();
            [_mm512_loadu_si512(table.cast()), _mm512_loadu_si512(table.add(64).cast())]
        };
        // The sign bit is not part of the index.
        _mm512_permutex2var_epi8(first, codes, second)
    };
    let sign = _mm512_and_si512(codes, _mm512_set1_epi8(i8::MIN));
    let (lower, upper) = (byte(0), _mm512_or_si512(byte(1), sign));
    // SAFETY: the vector types have the same bits.
    unsafe {
        [
            std::mem::transmute::<__m512i, __m512bh>(_mm512_unpacklo_epi8(lower, upper)),
            std::mem::transmute::<__m512i, __m512bh>(_mm512_unpackhi_epi8(lower, upper)),
        ]
    }
}
