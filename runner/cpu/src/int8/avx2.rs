//! Integer products with AVX2, FMA and F16C, and with AVX-VNNI.
//!
//! The two halves of a panel's lanes are computed one after the other. See [`super::tile`] for the
//! definition.
#![expect(unsafe_code, reason = "SIMD")]

use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi32_ps, _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_si256, _mm256_srli_epi16, _mm256_storeu_ps,
    _mm256_storeu_si256,
};

use super::activation_rows::{ActivationBlock, round_with};
use super::panel::Panel;
use super::panel_size::{DEPTH, LANES, PART, RUN};
use super::unpack::RowLayout;
use super::unpack::vectors::{Vectors, transposed};
use super::{ActivationRows, BLOCK, PanelColumns};

/// Number of rows of x in a tile.
const ROWS: usize = 4;
/// Number of lanes in a vector.
const WIDTH: usize = 8;

/// See [`round_with`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn round(x: &[f32], blocks: &mut [ActivationBlock]) {
    round_with(x, blocks);
}

/// Interleaves the codes of all rows.
#[target_feature(enable = "avx2,fma,f16c")]
fn interleave_all(part: &PanelColumns<'_>, panel: &mut Panel) {
    for strip in 0..part.columns / (WIDTH * RUN) {
        interleave(panel, strip, 0);
        interleave(panel, strip, WIDTH);
    }
}

/// Interleaves 32 codes of eight rows: transposes an 8 × 8 matrix of runs.
#[target_feature(enable = "avx2,fma,f16c")]
fn interleave(panel: &mut Panel, strip: usize, lane: usize) {
    const STRIP: usize = WIDTH * RUN;
    let row = |row: usize| {
        let codes = &panel.rows[lane + row][strip * STRIP..][..STRIP];
        // SAFETY: there are 32 bytes.
        unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
    };
    for (at, codes) in transposed(std::array::from_fn(row)).into_iter().enumerate() {
        let run = &mut panel.codes[strip * WIDTH + at][lane * RUN..][..STRIP];
        // SAFETY: there are 32 bytes.
        unsafe { _mm256_storeu_si256(run.as_mut_ptr().cast(), codes) };
    }
}

macro_rules! kernels {
    ($features:literal, $products:ident, $rows:ident, $tile:ident, $dot:ident) => {
        super::tile::products!($features, $products, $rows);

        #[target_feature(enable = $features)]
        fn $rows<const SIZE: usize, const BYTES: bool>(
            part: &PanelColumns<'_>,
            x: ActivationRows<'_>,
            panel: &Panel,
            sums: &mut [[f32; LANES]],
        ) {
            let (first, blocks) = (part.first / BLOCK, part.columns / BLOCK);
            let (groups, rest) = sums.as_chunks_mut::<ROWS>();
            for (at, sums) in groups.iter_mut().enumerate() {
                let x = x.rows(at * ROWS, ROWS, first);
                $tile::<SIZE, BYTES, ROWS>(panel, 0, x, blocks, sums);
                $tile::<SIZE, BYTES, ROWS>(panel, WIDTH, x, blocks, sums);
            }
            for (at, sums) in rest.iter_mut().enumerate() {
                let x = x.rows(groups.len() * ROWS + at, 1, first);
                let sums = std::array::from_mut(sums);
                $tile::<SIZE, BYTES, 1>(panel, 0, x, blocks, sums);
                $tile::<SIZE, BYTES, 1>(panel, WIDTH, x, blocks, sums);
            }
        }

        /// Adds the products of eight lanes with N rows of x. `SIZE` elements share a scale.
        #[target_feature(enable = $features)]
        #[inline]
        fn $tile<const SIZE: usize, const BYTES: bool, const N: usize>(
            panel: &Panel,
            lane: usize,
            (x, stride): (&[ActivationBlock], usize),
            blocks: usize,
            sums: &mut [[f32; LANES]; N],
        ) {
            let halves = BLOCK / SIZE;
            assert!(x.len() >= (N - 1) * stride + blocks && blocks * BLOCK <= DEPTH);
            let mut totals = [_mm256_set1_ps(0.0); N];
            for (total, sums) in totals.iter_mut().zip(&*sums) {
                *total = floats(sums, lane);
            }
            for at in 0..blocks * halves {
                let mut products = [_mm256_setzero_si256(); N];
                for run in 0..SIZE / RUN {
                    let codes = &panel.codes[at * (SIZE / RUN) + run][lane * RUN..][..WIDTH * RUN];
                    // SAFETY: there are 32 bytes.
                    let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
                    for (row, products) in products.iter_mut().enumerate() {
                        let place = at % halves * SIZE + run * RUN;
                        // SAFETY: the block is among those of x, as was asserted, and a run is
                        // within a block.
                        let quants = unsafe {
                            let block = x.as_ptr().add(row * stride + at / halves);
                            (&raw const (*block).quants).cast::<u8>().add(place).cast::<i32>().read_unaligned()
                        };
                        *products = $dot::<BYTES>(*products, codes, _mm256_set1_epi32(quants));
                    }
                }
                let (d, m) = (floats(&panel.scales[at], lane), floats(&panel.offsets[at], lane));
                for (row, (total, products)) in totals.iter_mut().zip(products).enumerate() {
                    // SAFETY: as above.
                    let block = unsafe { x.get_unchecked(row * stride + at / halves) };
                    let sum = if halves == 1 { block.sum } else { block.halves[at % halves] };
                    let offset = _mm256_mul_ps(m, _mm256_set1_ps(sum));
                    let product = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(products), offset);
                    *total = _mm256_fmadd_ps(_mm256_set1_ps(block.scale), product, *total);
                }
            }
            for (total, sums) in totals.into_iter().zip(sums) {
                let sums = &mut sums[lane..lane + WIDTH];
                // SAFETY: there are eight elements.
                unsafe { _mm256_storeu_ps(sums.as_mut_ptr(), total) };
            }
        }
    };
}

kernels!("avx2,fma,f16c", plain, rows, tile, dot);
kernels!("avx2,fma,f16c,avxvnni", vnni, rows_vnni, tile_vnni, dot_vnni);
super::few::kernel!("avx2,fma,f16c", few, few_rows, few_unit, few_run, few_pairs, few_dot);
super::few::kernel!(
    "avx2,fma,f16c,avxvnni",
    few_vnni,
    few_rows_vnni,
    few_unit_vnni,
    few_run_vnni,
    few_pairs_vnni,
    few_dot_vnni
);

/// Adds the products of four codes in each lane.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn dot<const BYTES: bool>(sums: __m256i, codes: __m256i, quants: __m256i) -> __m256i {
    if !BYTES {
        let pairs = _mm256_maddubs_epi16(codes, quants);
        return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    // The sum of two products of 8-bit codes overflows 16 bits, so the highest bit is multiplied
    // separately.
    let low = _mm256_maddubs_epi16(_mm256_and_si256(codes, _mm256_set1_epi8(127)), quants);
    let high = _mm256_and_si256(_mm256_srli_epi16::<7>(codes), _mm256_set1_epi8(1));
    let high = _mm256_maddubs_epi16(high, quants);
    let low = _mm256_madd_epi16(low, _mm256_set1_epi16(1));
    _mm256_add_epi32(sums, _mm256_add_epi32(low, _mm256_madd_epi16(high, _mm256_set1_epi16(128))))
}

/// Adds the products of four codes in each lane with one instruction.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
fn dot_vnni<const BYTES: bool>(sums: __m256i, codes: __m256i, quants: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sums, codes, quants)
}

/// Adds the products of four codes of a layout in each lane.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn few_dot<L: RowLayout>(sums: __m256i, codes: __m256i, quants: __m256i) -> __m256i {
    if L::WIDE { dot::<true>(sums, codes, quants) } else { dot::<false>(sums, codes, quants) }
}

/// Adds the products of four codes of a layout in each lane with one instruction.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
fn few_dot_vnni<L: RowLayout>(sums: __m256i, codes: __m256i, quants: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sums, codes, quants)
}

/// Loads eight numbers from `lane` on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn floats(numbers: &[f32; LANES], lane: usize) -> __m256 {
    let numbers = &numbers[lane..lane + WIDTH];
    // SAFETY: there are eight elements.
    unsafe { _mm256_loadu_ps(numbers.as_ptr()) }
}
