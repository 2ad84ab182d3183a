//! Products with few rows of x, as in decoding. Codes are multiplied in their stored order, for
//! eight rows at a time, and the lanes are then summed across rows. Integer sums are exact in any
//! order, so the results are those of [`super::tile`].

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadu_si128, _mm_setr_epi8, _mm256_add_epi32, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_castps_si256, _mm256_castsi128_si256, _mm256_castsi256_ps, _mm256_cvtepi32_ps, _mm256_fmadd_ps,
    _mm256_inserti128_si256, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_mul_ps, _mm256_permute2x128_si256,
    _mm256_permute4x64_epi64, _mm256_set1_epi8, _mm256_set1_ps, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_shuffle_ps, _mm256_srli_epi16, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64,
};

use super::activation_rows::ActivationBlock;
use super::panel_size::LANES;
use super::unpack::{OfUnit, Order, RowLayout, Units, WeightLocation};

/// Greatest number of rows of x for which this is faster than interleaving the codes.
pub(super) const FEW: usize = 4;

/// Whole rows of a weight.
#[derive(Clone, Copy)]
pub(super) struct Whole<'a> {
    /// Location of the weight's data.
    pub(super) place: &'a WeightLocation<'a>,
    /// Numbers of the rows, at most 16.
    pub(super) rows: &'a [usize],
    pub(super) columns: usize,
}

/// Sums for each row of x.
pub(super) type Sums = [[f32; LANES]];

/// Defines a kernel for some CPU features; `$dot` adds the products of four codes in each lane.
macro_rules! kernel {
    ($features:literal, $few:ident, $rows:ident, $unit:ident, $run:ident, $pairs:ident, $dot:ident) => {
        /// Multiplies with few rows of x.
        #[target_feature(enable = $features)]
        pub(super) fn $few<L: $crate::int8::unpack::RowLayout>(
            whole: $crate::int8::few::Whole<'_>,
            x: $crate::int8::ActivationRows<'_>,
            sums: &mut $crate::int8::few::Sums,
        ) {
            match sums {
                [a] => $rows::<L, 1>(whole, x, [a]),
                [a, b] => $rows::<L, 2>(whole, x, [a, b]),
                [a, b, c] => $rows::<L, 3>(whole, x, [a, b, c]),
                [a, b, c, d] => $rows::<L, 4>(whole, x, [a, b, c, d]),
                _ => unreachable!("invariant: there are few rows"),
            }
        }

        #[target_feature(enable = $features)]
        fn $rows<L: $crate::int8::unpack::RowLayout, const N: usize>(
            whole: $crate::int8::few::Whole<'_>,
            x: $crate::int8::ActivationRows<'_>,
            sums: [&mut [f32; 16]; N],
        ) {
            use std::arch::x86_64::{_mm256_set1_ps, _mm256_storeu_ps};
            use $crate::int8::BLOCK;
            use $crate::int8::unpack::vectors::Vectors;
            use $crate::int8::unpack::{Factors, UnpackedRows};
            let elements = L::RUNS * BLOCK;
            let mut blocks: [&[_]; N] = [&[]; N];
            for token in 0..N {
                blocks[token] = x.row(token, 0);
                assert!(blocks[token].len() * BLOCK == whole.columns);
            }
            assert!(whole.columns / elements * L::BYTES <= whole.place.row_bytes);
            let mut factors = Factors::ZERO;
            for lane in [0, 8] {
                if lane >= whole.rows.len() {
                    continue;
                }
                let rows = UnpackedRows::new(whole.place, whole.rows, lane);
                let mut totals = [_mm256_set1_ps(0.0); N];
                let count = whole.columns / elements;
                // A separate loop: nested loops cost more than they save if each unit has its own
                // scales.
                if L::TOGETHER == 1 {
                    for unit in 0..count {
                        rows.prefetch::<Vectors, L>(unit);
                        // SAFETY: rows have the units of all columns, as was asserted.
                        let units = unsafe { rows.units::<L>(unit) };
                        L::factors::<Vectors>(&rows, unit, &units, &mut factors);
                        $unit::<L, N>(&units, unit, factors.of::<L>(0), &blocks, &mut totals);
                    }
                } else {
                    for first in (0..count).step_by(L::TOGETHER) {
                        // SAFETY: as above.
                        L::factors::<Vectors>(&rows, first, &unsafe { rows.units::<L>(first) }, &mut factors);
                        for unit in first..(first + L::TOGETHER).min(count) {
                            rows.prefetch::<Vectors, L>(unit);
                            // SAFETY: as above.
                            let units = unsafe { rows.units::<L>(unit) };
                            $unit::<L, N>(&units, unit, factors.of::<L>(unit - first), &blocks, &mut totals);
                        }
                    }
                }
                for token in 0..N {
                    // SAFETY: there are eight elements from the lane on.
                    unsafe { _mm256_storeu_ps(sums[token][lane..lane + 8].as_mut_ptr(), totals[token]) };
                }
            }
        }

        /// Passes run numbers as constants, so that each run is compiled separately.
        #[target_feature(enable = $features)]
        #[inline]
        fn $unit<L: $crate::int8::unpack::RowLayout, const N: usize>(
            units: &$crate::int8::unpack::Units<'_>,
            unit: usize,
            factors: $crate::int8::unpack::OfUnit<'_>,
            blocks: &[&[$crate::int8::activation_rows::ActivationBlock]; N],
            totals: &mut [std::arch::x86_64::__m256; N],
        ) {
            if L::NIBBLES.is_some() {
                for run in 0..L::RUNS {
                    $pairs::<L, N>(units, unit, run, factors, blocks, totals);
                }
                return;
            }
            $run::<L, N, 0>(units, unit, factors, blocks, totals);
            if L::RUNS > 1 {
                $run::<L, N, 1>(units, unit, factors, blocks, totals);
            }
            if L::RUNS == 8 {
                $run::<L, N, 2>(units, unit, factors, blocks, totals);
                $run::<L, N, 3>(units, unit, factors, blocks, totals);
                $run::<L, N, 4>(units, unit, factors, blocks, totals);
                $run::<L, N, 5>(units, unit, factors, blocks, totals);
                $run::<L, N, 6>(units, unit, factors, blocks, totals);
                $run::<L, N, 7>(units, unit, factors, blocks, totals);
            }
        }

        /// Adds the products of a run of eight rows.
        #[target_feature(enable = $features)]
        #[inline]
        fn $run<L: $crate::int8::unpack::RowLayout, const N: usize, const RUN: u8>(
            units: &$crate::int8::unpack::Units<'_>,
            unit: usize,
            factors: $crate::int8::unpack::OfUnit<'_>,
            blocks: &[&[$crate::int8::activation_rows::ActivationBlock]; N],
            totals: &mut [std::arch::x86_64::__m256; N],
        ) {
            use std::arch::x86_64::{
                _mm256_add_epi32, _mm256_loadu_si256, _mm256_permute2x128_si256, _mm256_setzero_si256,
                _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
            };
            use $crate::int8::unpack::vectors::Vectors;
            let run = usize::from(RUN);
            let mut codes = [_mm256_setzero_si256(); 8];
            for row in 0..8 {
                codes[row] = L::codes::<Vectors>(units[row], RUN).0;
            }
            for token in 0..N {
                let block = &blocks[token][unit * L::RUNS + run];
                // SAFETY: a block has 32 quants.
                let quants = unsafe { _mm256_loadu_si256(block.quants.as_ptr().cast()) };
                // Each row has eight lanes: four for each half of the block.
                let mut sums = [_mm256_setzero_si256(); 8];
                for row in 0..8 {
                    sums[row] = $dot::<L>(sums[row], codes[row], quants);
                }
                let mut pairs = [_mm256_setzero_si256(); 4];
                for at in 0..4 {
                    let (a, b) = (sums[2 * at], sums[2 * at + 1]);
                    pairs[at] = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
                }
                let mut fours = [_mm256_setzero_si256(); 2];
                for at in 0..2 {
                    let (a, b) = (pairs[2 * at], pairs[2 * at + 1]);
                    fours[at] = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
                }
                let first = _mm256_permute2x128_si256::<0x20>(fours[0], fours[1]);
                let second = _mm256_permute2x128_si256::<0x31>(fours[0], fours[1]);
                if L::HALVES {
                    totals[token] = $crate::int8::few::add_part(
                        factors,
                        2 * run,
                        first,
                        block.scale,
                        block.halves[0],
                        totals[token],
                    );
                    totals[token] = $crate::int8::few::add_part(
                        factors,
                        2 * run + 1,
                        second,
                        block.scale,
                        block.halves[1],
                        totals[token],
                    );
                } else {
                    let all = _mm256_add_epi32(first, second);
                    totals[token] =
                        $crate::int8::few::add_part(factors, run, all, block.scale, block.sum, totals[token]);
                }
            }
        }

        /// Adds the products of a run of nibbles of eight rows, two rows in a vector.
        #[target_feature(enable = $features)]
        #[inline]
        fn $pairs<L: $crate::int8::unpack::RowLayout, const N: usize>(
            units: &$crate::int8::unpack::Units<'_>,
            unit: usize,
            run: usize,
            factors: $crate::int8::unpack::OfUnit<'_>,
            blocks: &[&[$crate::int8::activation_rows::ActivationBlock]; N],
            totals: &mut [std::arch::x86_64::__m256; N],
        ) {
            use std::arch::x86_64::{_mm256_add_epi32, _mm256_setzero_si256};
            use $crate::int8::few;
            let codes = few::nibbles::<L>(units, run);
            for token in 0..N {
                let block = &blocks[token][unit * L::RUNS + run];
                let quants = few::quants_of_nibbles::<L>(block);
                let mut sums = [_mm256_setzero_si256(); 4];
                for at in 0..4 {
                    let [low, high] = codes[at];
                    sums[at] = $dot::<L>($dot::<L>(sums[at], low, quants[0]), high, quants[1]);
                }
                let [first, second] = few::sums_of_pairs::<L>(sums);
                if L::HALVES {
                    totals[token] = few::add_part(factors, 2 * run, first, block.scale, block.halves[0], totals[token]);
                    totals[token] =
                        few::add_part(factors, 2 * run + 1, second, block.scale, block.halves[1], totals[token]);
                } else {
                    let all = _mm256_add_epi32(first, second);
                    totals[token] = few::add_part(factors, run, all, block.scale, block.sum, totals[token]);
                }
            }
        }
    };
}

pub(super) use kernel;

/// Adds the products of a part for eight rows: `scale · (d · products + m · sum)`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn add_part(
    factors: OfUnit<'_>,
    part: usize,
    products: __m256i,
    scale: f32,
    sum: f32,
    total: __m256,
) -> __m256 {
    let [d, m] = factors.part(part);
    // SAFETY: there are eight numbers.
    let (d, m) = unsafe { (_mm256_loadu_ps(d.as_ptr()), _mm256_loadu_ps(m.as_ptr())) };
    let product = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(products), _mm256_mul_ps(m, _mm256_set1_ps(sum)));
    _mm256_fmadd_ps(_mm256_set1_ps(scale), product, total)
}

/// Returns the low and the high nibbles of a run of eight rows: first of rows 0 and 4, then of rows
/// 1 and 5, and so on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn nibbles<L: RowLayout>(units: &Units<'_>, run: usize) -> [[__m256i; 2]; 4] {
    let how = L::NIBBLES.expect("invariant: runs are nibbles");
    let mut codes = [[_mm256_setzero_si256(); 2]; 4];
    let mask = _mm256_set1_epi8(15);
    for at in 0..4 {
        // SAFETY: there are 16 bytes each.
        let (first, second) = unsafe {
            let run = run as u8;
            let (first, second) = (how.of(units[at], run), how.of(units[at + 4], run));
            (_mm_loadu_si128(first.as_ptr().cast()), _mm_loadu_si128(second.as_ptr().cast()))
        };
        let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(first), second);
        codes[at] = [_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask)];
        if let Some(table) = how.table {
            // SAFETY: there are 16 bytes.
            let table = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) });
            codes[at] = [_mm256_shuffle_epi8(table, codes[at][0]), _mm256_shuffle_epi8(table, codes[at][1])];
        }
    }
    codes
}

/// Returns the activations for the low and for the high nibbles of a run, each of them twice.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn quants_of_nibbles<L: RowLayout>(block: &ActivationBlock) -> [__m256i; 2] {
    // SAFETY: a block has 32 quants.
    let mut all = unsafe { _mm256_loadu_si256(block.quants.as_ptr().cast()) };
    match L::NIBBLES.expect("invariant: runs are nibbles").order {
        Order::Halves => {
            return [_mm256_permute2x128_si256::<0x00>(all, all), _mm256_permute2x128_si256::<0x11>(all, all)];
        }
        // The odd elements of each half go to its second quarter.
        Order::Pairs => {
            let places = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
            all = _mm256_shuffle_epi8(all, _mm256_broadcastsi128_si256(places));
        }
        Order::Quarters => {}
    }
    [_mm256_permute4x64_epi64::<0b10_00_10_00>(all), _mm256_permute4x64_epi64::<0b11_01_11_01>(all)]
}

/// Returns the sums of eight rows over the first and the second half of their lanes; over even and
/// odd lanes if the layout does not need halves.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn sums_of_pairs<L: RowLayout>([a, b, c, d]: [__m256i; 4]) -> [__m256i; 2] {
    if !L::HALVES {
        let ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        return [_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd)];
    }
    let low = (_mm256_unpacklo_epi64(a, b), _mm256_unpacklo_epi64(c, d));
    let high = (_mm256_unpackhi_epi64(a, b), _mm256_unpackhi_epi64(c, d));
    [neighbours(low.0, low.1), neighbours(high.0, high.1)]
}

/// Adds adjacent lanes of two vectors.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn neighbours(a: __m256i, b: __m256i) -> __m256i {
    let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
    let even = _mm256_shuffle_ps::<0b10_00_10_00>(a, b);
    let odd = _mm256_shuffle_ps::<0b11_01_11_01>(a, b);
    _mm256_add_epi32(_mm256_castps_si256(even), _mm256_castps_si256(odd))
}
