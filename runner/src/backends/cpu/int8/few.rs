//! Products of unpacked rows with few rows of x: codes are multiplied as they lie, and what lanes hold is added up across
//! rows. Integer sums are exact in any order, so the results are those of [`super::tile`].

/// Rows of x up to which this is faster than to put codes side by side.
pub(super) const FEW: usize = 3;

/// Defines a kernel for some features, with what adds the products of four codes in each lane.
macro_rules! kernel {
    ($features:literal, $few:ident, $few_rows:ident, $dot:ident) => {
        /// Adds the products with few rows of x, where `SIZE` elements share a scale.
        #[target_feature(enable = $features)]
        fn $few<const SIZE: usize, const BYTES: bool>(
            part: &$crate::backends::cpu::int8::Part<'_>,
            x: &$crate::backends::cpu::int8::Activations,
            panel: &$crate::backends::cpu::int8::panel::Panel,
            sums: &mut [[f32; $crate::backends::cpu::int8::panel::LANES]],
        ) {
            for lane in [0, 8] {
                match sums {
                    [a] => $few_rows::<SIZE, BYTES, 1>(part, x, panel, lane, [a]),
                    [a, b] => $few_rows::<SIZE, BYTES, 2>(part, x, panel, lane, [a, b]),
                    [a, b, c] => $few_rows::<SIZE, BYTES, 3>(part, x, panel, lane, [a, b, c]),
                    _ => unreachable!("invariant: there are few rows"),
                }
            }
        }

        /// The same for eight lanes and N rows of x.
        #[target_feature(enable = $features)]
        #[inline]
        fn $few_rows<const SIZE: usize, const BYTES: bool, const N: usize>(
            part: &$crate::backends::cpu::int8::Part<'_>,
            x: &$crate::backends::cpu::int8::Activations,
            panel: &$crate::backends::cpu::int8::panel::Panel,
            lane: usize,
            sums: [&mut [f32; $crate::backends::cpu::int8::panel::LANES]; N],
        ) {
            use std::arch::x86_64::{
                __m256i, _mm256_add_epi32, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_mul_ps,
                _mm256_permute2x128_si256, _mm256_set1_ps, _mm256_setzero_si256, _mm256_storeu_ps,
                _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
            };
            use $crate::backends::cpu::int8::{BLOCK, avx2::floats, panel::DEPTH};
            let blocks = part.columns / BLOCK;
            assert!(blocks * BLOCK <= DEPTH && lane < 16);
            let mut totals = [_mm256_set1_ps(0.0); N];
            let mut rows: [&[_]; N] = [&[]; N];
            for token in 0..N {
                totals[token] = floats(sums[token], lane);
                rows[token] = &x.row(token, part.first / BLOCK)[..blocks];
            }
            for at in 0..blocks {
                let codes = |row: usize| {
                    // SAFETY: a panel has so many rows, and each so many blocks, as was asserted.
                    unsafe { _mm256_loadu_si256(panel.rows.as_ptr().add(lane + row).cast::<__m256i>().add(at)) }
                };
                let codes: [__m256i; 8] = std::array::from_fn(codes);
                for token in 0..N {
                    let block = &rows[token][at];
                    // SAFETY: a block has 32 quants.
                    let quants = unsafe { _mm256_loadu_si256(block.quants.as_ptr().cast()) };
                    // The eight lanes of a row: four of each half of the block.
                    let products = |row: usize| $dot::<BYTES>(_mm256_setzero_si256(), codes[row], quants);
                    let pair = |a: __m256i, b: __m256i| {
                        _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b))
                    };
                    let four = |row: usize| {
                        let a = pair(products(row), products(row + 1));
                        let b = pair(products(row + 2), products(row + 3));
                        _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
                    };
                    let (a, b) = (four(0), four(4));
                    let first = _mm256_permute2x128_si256::<0x20>(a, b);
                    let second = _mm256_permute2x128_si256::<0x31>(a, b);
                    let scale = _mm256_set1_ps(block.scale);
                    let add = |total, products: __m256i, sum: f32, place: usize| {
                        let (d, m) = (floats(&panel.scales[place], lane), floats(&panel.offsets[place], lane));
                        let offset = _mm256_mul_ps(m, _mm256_set1_ps(sum));
                        let product = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(products), offset);
                        _mm256_fmadd_ps(scale, product, total)
                    };
                    if SIZE == BLOCK {
                        totals[token] = add(totals[token], _mm256_add_epi32(first, second), block.sum, at);
                    } else {
                        totals[token] = add(totals[token], first, block.halves[0], 2 * at);
                        totals[token] = add(totals[token], second, block.halves[1], 2 * at + 1);
                    }
                }
            }
            for (total, sums) in totals.into_iter().zip(sums) {
                // SAFETY: there are eight elements from the lane on.
                unsafe { _mm256_storeu_ps(sums[lane..lane + 8].as_mut_ptr(), total) };
            }
        }
    };
}

pub(super) use kernel;
