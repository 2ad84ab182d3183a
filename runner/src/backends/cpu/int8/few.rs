//! Products with few rows of x, which is what decoding is: codes are multiplied as they lie, eight rows at a time, and what lanes
//! hold is added up across rows. Integer sums are exact in any order, so the results are those of [`super::tile`].

use super::panel::LANES;
use super::unpack::Place;

/// Rows of x up to which this is faster than to put codes side by side.
pub(super) const FEW: usize = 4;

/// Whole rows of a weight.
#[derive(Clone, Copy)]
pub(super) struct Whole<'a> {
    /// Where they lie.
    pub(super) place: &'a Place<'a>,
    /// Which they are, up to 16.
    pub(super) rows: &'a [usize],
    pub(super) columns: usize,
}

/// Sums of rows of x.
pub(super) type Sums = [[f32; LANES]];

/// Defines a kernel for some features, with what adds the products of four codes in each lane.
macro_rules! kernel {
    ($features:literal, $few:ident, $rows:ident, $unit:ident, $run:ident, $dot:ident) => {
        /// The products with few rows of x.
        #[target_feature(enable = $features)]
        pub(super) fn $few<L: $crate::backends::cpu::int8::unpack::Layout>(
            whole: $crate::backends::cpu::int8::few::Whole<'_>,
            x: &$crate::backends::cpu::int8::Activations,
            sums: &mut $crate::backends::cpu::int8::few::Sums,
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
        fn $rows<L: $crate::backends::cpu::int8::unpack::Layout, const N: usize>(
            whole: $crate::backends::cpu::int8::few::Whole<'_>,
            x: &$crate::backends::cpu::int8::Activations,
            sums: [&mut [f32; 16]; N],
        ) {
            use std::arch::x86_64::{_mm256_set1_ps, _mm256_storeu_ps};
            use $crate::backends::cpu::int8::BLOCK;
            use $crate::backends::cpu::int8::avx2::Vectors;
            use $crate::backends::cpu::int8::unpack::{Numbers, Rows};
            let elements = L::RUNS * BLOCK;
            let mut blocks: [&[_]; N] = [&[]; N];
            for token in 0..N {
                blocks[token] = x.row(token, 0);
                assert!(blocks[token].len() * BLOCK == whole.columns);
            }
            assert!(whole.columns / elements * L::BYTES <= whole.place.row_bytes);
            let mut numbers = Numbers::ZERO;
            for lane in [0, 8] {
                if lane >= whole.rows.len() {
                    continue;
                }
                let rows = Rows::new(whole.place, whole.rows, lane);
                let mut totals = [_mm256_set1_ps(0.0); N];
                for unit in 0..whole.columns / elements {
                    rows.prefetch::<Vectors, L>(unit);
                    // SAFETY: rows have the units of all columns, as was asserted.
                    let units = unsafe { rows.units::<L>(unit) };
                    L::numbers::<Vectors>(&rows, unit, &units, &mut numbers);
                    $unit::<L, N>(&units, unit, &numbers, &blocks, &mut totals);
                }
                for token in 0..N {
                    // SAFETY: there are eight elements from the lane on.
                    unsafe { _mm256_storeu_ps(sums[token][lane..lane + 8].as_mut_ptr(), totals[token]) };
                }
            }
        }

        /// Runs by constants, so that each is compiled by itself.
        #[target_feature(enable = $features)]
        #[inline]
        fn $unit<L: $crate::backends::cpu::int8::unpack::Layout, const N: usize>(
            units: &$crate::backends::cpu::int8::unpack::Units<'_>,
            unit: usize,
            numbers: &$crate::backends::cpu::int8::unpack::Numbers,
            blocks: &[&[$crate::backends::cpu::int8::activations::Block]; N],
            totals: &mut [std::arch::x86_64::__m256; N],
        ) {
            $run::<L, N, 0>(units, unit, numbers, blocks, totals);
            if L::RUNS > 1 {
                $run::<L, N, 1>(units, unit, numbers, blocks, totals);
            }
            if L::RUNS == 8 {
                $run::<L, N, 2>(units, unit, numbers, blocks, totals);
                $run::<L, N, 3>(units, unit, numbers, blocks, totals);
                $run::<L, N, 4>(units, unit, numbers, blocks, totals);
                $run::<L, N, 5>(units, unit, numbers, blocks, totals);
                $run::<L, N, 6>(units, unit, numbers, blocks, totals);
                $run::<L, N, 7>(units, unit, numbers, blocks, totals);
            }
        }

        /// Adds the products of a run of eight rows.
        #[target_feature(enable = $features)]
        #[inline]
        fn $run<L: $crate::backends::cpu::int8::unpack::Layout, const N: usize, const RUN: u8>(
            units: &$crate::backends::cpu::int8::unpack::Units<'_>,
            unit: usize,
            numbers: &$crate::backends::cpu::int8::unpack::Numbers,
            blocks: &[&[$crate::backends::cpu::int8::activations::Block]; N],
            totals: &mut [std::arch::x86_64::__m256; N],
        ) {
            use std::arch::x86_64::{
                __m256i, _mm256_add_epi32, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
                _mm256_mul_ps, _mm256_permute2x128_si256, _mm256_set1_ps, _mm256_setzero_si256, _mm256_unpackhi_epi32,
                _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
            };
            use $crate::backends::cpu::int8::avx2::Vectors;
            let run = usize::from(RUN);
            let mut codes = [_mm256_setzero_si256(); 8];
            for row in 0..8 {
                codes[row] = L::codes::<Vectors>(units[row], RUN).0;
            }
            for token in 0..N {
                let block = &blocks[token][unit * L::RUNS + run];
                // SAFETY: a block has 32 quants.
                let quants = unsafe { _mm256_loadu_si256(block.quants.as_ptr().cast()) };
                // The eight lanes of a row: four of each half of the block.
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
                let scale = _mm256_set1_ps(block.scale);
                let of_part = |products: __m256i, sum: f32, part: usize| {
                    // SAFETY: there are eight numbers.
                    let (d, m) = unsafe {
                        (
                            _mm256_loadu_ps(numbers.scales[part].as_ptr()),
                            _mm256_loadu_ps(numbers.offsets[part].as_ptr()),
                        )
                    };
                    _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(products), _mm256_mul_ps(m, _mm256_set1_ps(sum)))
                };
                if L::HALVES {
                    let product = of_part(first, block.halves[0], 2 * run);
                    totals[token] = _mm256_fmadd_ps(scale, product, totals[token]);
                    let product = of_part(second, block.halves[1], 2 * run + 1);
                    totals[token] = _mm256_fmadd_ps(scale, product, totals[token]);
                } else {
                    let product = of_part(_mm256_add_epi32(first, second), block.sum, run);
                    totals[token] = _mm256_fmadd_ps(scale, product, totals[token]);
                }
            }
        }
    };
}

pub(super) use kernel;
