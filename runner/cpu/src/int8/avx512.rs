//! Integer products with AVX-512, and with AVX-512 VNNI. See [`super::tile`] for the definition.
#![expect(unsafe_code, reason = "SIMD")]

use std::arch::x86_64::{
    __m256i, __m512i, _CMP_ORD_Q, _mm_storeu_si128, _mm256_dpbusd_epi32, _mm512_abs_ps, _mm512_add_epi32,
    _mm512_and_si512, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi8, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_load_ps, _mm512_load_si512, _mm512_loadu_ps, _mm512_madd_epi16, _mm512_maddubs_epi16,
    _mm512_maskz_cvtps_epi32, _mm512_max_ps, _mm512_mul_ps, _mm512_reduce_add_epi32, _mm512_reduce_max_ps,
    _mm512_set1_epi8, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512, _mm512_shuffle_i32x4,
    _mm512_srli_epi16, _mm512_store_si512, _mm512_storeu_ps, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::activation_rows::{ActivationBlock, inverse};
use super::panel::Panel;
use super::panel_size::{DEPTH, LANES, PART, RUN};
use super::unpack::RowLayout;
use super::unpack::vectors::Vectors;
use super::{ActivationRows, BLOCK, PanelColumns};

/// Number of rows of x in a tile.
const ROWS: usize = 8;

/// See [`super::activations::round_with`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn round(x: &[f32], blocks: &mut [ActivationBlock]) {
    for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        // SAFETY: there are 32 elements.
        let halves = unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(LANES))] };
        let largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(halves[0]), _mm512_abs_ps(halves[1])));
        // Codes cannot represent NaN. The scale becomes NaN instead, and with it all sums of the
        // block.
        let is_number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(halves[0], halves[1]) == u16::MAX;
        let scale = if is_number { largest / 127.0 } else { f32::NAN };
        let inverse = _mm512_set1_ps(inverse(scale));
        for (half, x) in halves.into_iter().enumerate() {
            let x = _mm512_mul_ps(x, inverse);
            let quants = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x), x);
            let place = &mut block.quants[half * LANES..][..LANES];
            // SAFETY: there is room for sixteen.
            unsafe { _mm_storeu_si128(place.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(quants)) };
            block.halves[half] = _mm512_reduce_add_epi32(quants) as f32;
        }
        block.sum = block.halves[0] + block.halves[1];
        block.scale = scale;
    }
}

/// Interleaves the codes of all rows.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn interleave_all(part: &PanelColumns<'_>, panel: &mut Panel) {
    for strip in 0..part.columns.div_ceil(LANES * RUN) {
        interleave(panel, strip);
    }
}

/// Interleaves 64 codes of all rows: transposes a 16 × 16 matrix of runs.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn interleave(panel: &mut Panel, strip: usize) {
    const STRIP: usize = LANES * RUN;
    let row = |row: usize| {
        let codes = &panel.rows[row][strip * STRIP..][..STRIP];
        // SAFETY: there are 64 bytes, and rows are aligned to whole vectors.
        unsafe { _mm512_load_si512(codes.as_ptr().cast()) }
    };
    // For each four rows: runs 0, 1, 2 and 3 of every quarter.
    let mut fours = [[_mm512_setzero_si512(); 4]; 4];
    for (at, four) in fours.iter_mut().enumerate() {
        let [a, b, c, d] = [row(4 * at), row(4 * at + 1), row(4 * at + 2), row(4 * at + 3)];
        let low = [_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d)];
        let high = [_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d)];
        *four = [
            _mm512_unpacklo_epi64(low[0], low[1]),
            _mm512_unpackhi_epi64(low[0], low[1]),
            _mm512_unpacklo_epi64(high[0], high[1]),
            _mm512_unpackhi_epi64(high[0], high[1]),
        ];
    }
    let [first, second, third, fourth] = fours;
    for (run, (((a, b), c), d)) in first.into_iter().zip(second).zip(third).zip(fourth).enumerate() {
        // Quarters 0 and 2, then quarters 1 and 3, of two vectors each.
        let even = [_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d)];
        let odd = [_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d)];
        let quarters = [
            _mm512_shuffle_i32x4::<0x88>(even[0], even[1]),
            _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]),
            _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]),
            _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]),
        ];
        for (quarter, codes) in quarters.into_iter().enumerate() {
            let run = &mut panel.codes[strip * LANES + quarter * 4 + run];
            // SAFETY: there are 64 bytes, and runs are aligned to whole vectors.
            unsafe { _mm512_store_si512(run.as_mut_ptr().cast(), codes) };
        }
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
            let mut row = 0;
            while row + ROWS <= sums.len() {
                $tile::<SIZE, BYTES, ROWS>(panel, x.rows(row, ROWS, first), blocks, &mut sums[row..]);
                row += ROWS;
            }
            while row + 2 <= sums.len() {
                $tile::<SIZE, BYTES, 2>(panel, x.rows(row, 2, first), blocks, &mut sums[row..]);
                row += 2;
            }
            if row < sums.len() {
                $tile::<SIZE, BYTES, 1>(panel, x.rows(row, 1, first), blocks, &mut sums[row..]);
            }
        }

        /// Adds the products with N rows of x. `SIZE` elements share a scale.
        #[target_feature(enable = $features)]
        #[inline]
        fn $tile<const SIZE: usize, const BYTES: bool, const N: usize>(
            panel: &Panel,
            (x, stride): (&[ActivationBlock], usize),
            blocks: usize,
            sums: &mut [[f32; LANES]],
        ) {
            let halves = BLOCK / SIZE;
            assert!(sums.len() >= N && x.len() >= (N - 1) * stride + blocks && blocks * BLOCK <= DEPTH);
            let mut totals = [_mm512_set1_ps(0.0); N];
            for (total, sums) in totals.iter_mut().zip(&*sums) {
                // SAFETY: there are 16 elements.
                *total = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
            }
            for at in 0..blocks * halves {
                let mut products = [_mm512_setzero_si512(); N];
                for run in 0..SIZE / RUN {
                    // SAFETY: a panel has this run, as was asserted, and runs are aligned to whole
                    // vectors.
                    let codes = unsafe { _mm512_load_si512(panel.codes.as_ptr().add(at * (SIZE / RUN) + run).cast()) };
                    for (row, products) in products.iter_mut().enumerate() {
                        let place = at % halves * SIZE + run * RUN;
                        // SAFETY: the block is among those of x, as was asserted, and a run is
                        // within a block.
                        let quants = unsafe {
                            let block = x.as_ptr().add(row * stride + at / halves);
                            (&raw const (*block).quants).cast::<u8>().add(place).cast::<i32>().read_unaligned()
                        };
                        *products = $dot::<BYTES>(*products, codes, _mm512_set1_epi32(quants));
                    }
                }
                // SAFETY: a panel has this part, as was asserted, and its numbers are aligned to
                // whole vectors.
                let [d, m] = unsafe {
                    [
                        _mm512_load_ps(panel.scales.as_ptr().add(at).cast()),
                        _mm512_load_ps(panel.offsets.as_ptr().add(at).cast()),
                    ]
                };
                for (row, (total, products)) in totals.iter_mut().zip(products).enumerate() {
                    // SAFETY: as above.
                    let block = unsafe { x.get_unchecked(row * stride + at / halves) };
                    let sum = if halves == 1 { block.sum } else { block.halves[at % halves] };
                    let offset = _mm512_mul_ps(m, _mm512_set1_ps(sum));
                    let product = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(products), offset);
                    *total = _mm512_fmadd_ps(_mm512_set1_ps(block.scale), product, *total);
                }
            }
            for (total, sums) in totals.into_iter().zip(sums) {
                // SAFETY: there are 16 elements.
                unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), total) };
            }
        }
    };
}

kernels!("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl", plain, rows, tile, dot);
kernels!("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", vnni, rows_vnni, tile_vnni, dot_vnni);
super::few::kernel!(
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
    few_vnni,
    few_rows,
    few_unit,
    few_run,
    few_pairs,
    few_dot
);

/// Adds the products of four codes in each lane.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn dot<const BYTES: bool>(sums: __m512i, codes: __m512i, quants: __m512i) -> __m512i {
    if !BYTES {
        let pairs = _mm512_maddubs_epi16(codes, quants);
        return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
    // The sum of two products of 8-bit codes overflows 16 bits, so the highest bit is multiplied
    // separately.
    let low = _mm512_maddubs_epi16(_mm512_and_si512(codes, _mm512_set1_epi8(127)), quants);
    let high = _mm512_and_si512(_mm512_srli_epi16::<7>(codes), _mm512_set1_epi8(1));
    let high = _mm512_maddubs_epi16(high, quants);
    let low = _mm512_madd_epi16(low, _mm512_set1_epi16(1));
    _mm512_add_epi32(sums, _mm512_add_epi32(low, _mm512_madd_epi16(high, _mm512_set1_epi16(128))))
}

/// Adds the products of four codes in each lane with one instruction.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn dot_vnni<const BYTES: bool>(sums: __m512i, codes: __m512i, quants: __m512i) -> __m512i {
    _mm512_dpbusd_epi32(sums, codes, quants)
}

/// Adds the products of four codes in each of eight lanes with one instruction.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn few_dot<L: RowLayout>(sums: __m256i, codes: __m256i, quants: __m256i) -> __m256i {
    _mm256_dpbusd_epi32(sums, codes, quants)
}
