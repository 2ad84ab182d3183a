//! Integer products with AVX2, FMA and F16C, and with AVX-VNNI.
//!
//! Both halves of a panel's lanes are computed one after the other. See [`super::tile`] for what is computed.
#![expect(unsafe_code, reason = "SIMD")]
#![expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]

use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T1, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadu_si128, _mm_prefetch,
    _mm256_add_epi32, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_cmpeq_epi8, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi16, _mm256_cvtph_ps, _mm256_dpbusd_avx_epi32, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_or_si256,
    _mm256_permute2x128_si256, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_epi64x,
    _mm256_set1_ps, _mm256_setr_epi32, _mm256_setr_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sll_epi16,
    _mm256_slli_epi16, _mm256_srl_epi16, _mm256_srli_epi16, _mm256_srlv_epi32, _mm256_storeu_ps, _mm256_storeu_si256,
    _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

use super::activations::{Block, round_with};
use super::panel::{DEPTH, HALF, LANES, PART, Panel, RUN};
use super::unpack::{Codes, Layout, Machine};
use super::{Activations, BLOCK, Part};

/// Rows of x that are computed together.
const ROWS: usize = 4;
/// Lanes of a vector.
const WIDTH: usize = 8;

/// AVX2 and F16C.
///
/// # Safety
/// Who unpacks with this machine has both: what makes its methods safe.
pub(super) struct Vectors;

/// 32 codes in a vector.
#[derive(Clone, Copy)]
pub(super) struct Vector(pub(super) __m256i);

impl Machine for Vectors {
    type Codes = Vector;

    #[inline(always)]
    fn half(bits: [u8; 2]) -> f32 {
        let bits = i32::from(u16::from_le_bytes(bits));
        // SAFETY: see the machine.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))) }
    }

    #[inline(always)]
    fn halves(bits: &[[u8; 2]; HALF]) -> [f32; HALF] {
        let mut numbers = [0.0; HALF];
        // SAFETY: see the machine; there are 16 bytes, and eight numbers.
        unsafe { _mm256_storeu_ps(numbers.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(bits.as_ptr().cast()))) };
        numbers
    }

    #[inline(always)]
    fn transpose(rows: &[[f32; HALF]; HALF]) -> [[f32; HALF]; HALF] {
        // SAFETY: see the machine.
        unsafe { transpose(rows) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: any machine of this kind has the instruction, and it reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
}

/// See [`Machine::transpose`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn transpose(rows: &[[f32; HALF]; HALF]) -> [[f32; HALF]; HALF] {
    let mut own = [_mm256_setzero_si256(); HALF];
    for (own, row) in own.iter_mut().zip(rows) {
        // SAFETY: there are eight numbers.
        *own = unsafe { _mm256_loadu_si256(row.as_ptr().cast()) };
    }
    let mut lanes = [[0.0; HALF]; HALF];
    for (lane, own) in lanes.iter_mut().zip(transposed(own)) {
        // SAFETY: there are eight numbers.
        unsafe { _mm256_storeu_si256(lane.as_mut_ptr().cast(), own) };
    }
    lanes
}

/// Eight times eight numbers of 32 bits the other way round.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn transposed(rows: [__m256i; WIDTH]) -> [__m256i; WIDTH] {
    let [a, b, c, d, e, f, g, h] = rows;
    let pair = |a, b| [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)];
    let four = |[a, b]: [__m256i; 2], [c, d]: [__m256i; 2]| {
        [
            _mm256_unpacklo_epi64(a, c),
            _mm256_unpackhi_epi64(a, c),
            _mm256_unpacklo_epi64(b, d),
            _mm256_unpackhi_epi64(b, d),
        ]
    };
    let low = four(pair(a, b), pair(c, d));
    let high = four(pair(e, f), pair(g, h));
    let first = |at: usize| _mm256_permute2x128_si256::<0x20>(low[at], high[at]);
    let second = |at: usize| _mm256_permute2x128_si256::<0x31>(low[at], high[at]);
    [first(0), first(1), first(2), first(3), second(0), second(1), second(2), second(3)]
}

impl From<[u8; BLOCK]> for Vector {
    #[inline(always)]
    fn from(codes: [u8; BLOCK]) -> Self {
        // SAFETY: see the machine; there are 32 bytes.
        Self(unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) })
    }
}

impl From<Vector> for [u8; BLOCK] {
    #[inline(always)]
    fn from(vector: Vector) -> Self {
        let mut codes = [0; BLOCK];
        // SAFETY: see the machine; there are 32 bytes.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), vector.0) };
        codes
    }
}

impl Codes for Vector {
    #[inline(always)]
    fn nibbles(packed: &[u8; BLOCK / 2]) -> Self {
        // SAFETY: see the machine; there are 16 bytes.
        Self(unsafe {
            let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(packed.as_ptr().cast()));
            // Only the second half is shifted.
            let shifts = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
            _mm256_and_si256(_mm256_srlv_epi32(both, shifts), _mm256_set1_epi8(15))
        })
    }

    #[inline(always)]
    fn pairs(packed: &[u8; BLOCK / 2]) -> Self {
        // SAFETY: see the machine; there are 16 bytes.
        Self(unsafe {
            // A byte becomes a pair of bytes, of which the second takes the high nibble.
            let pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128(packed.as_ptr().cast()));
            let both = _mm256_or_si256(pairs, _mm256_slli_epi16::<4>(pairs));
            _mm256_and_si256(both, _mm256_set1_epi8(15))
        })
    }

    #[inline(always)]
    fn spread(bits: [u8; BLOCK / 8]) -> Self {
        // SAFETY: see the machine.
        Self(unsafe {
            // Each of the four bytes eight times, then another bit of each.
            let places = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(bits)), places);
            let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
            _mm256_and_si256(set, _mm256_set1_epi8(1))
        })
    }

    #[inline(always)]
    fn bits(self, shift: u8, mask: u8) -> Self {
        // SAFETY: see the machine. What comes from the byte above is no bit of the mask.
        Self(unsafe {
            let mask = _mm256_set1_epi8(mask.cast_signed());
            _mm256_and_si256(_mm256_srl_epi16(self.0, _mm_cvtsi32_si128(i32::from(shift))), mask)
        })
    }

    #[inline(always)]
    fn with(self, more: Self, shift: u8) -> Self {
        // SAFETY: see the machine.
        Self(unsafe { _mm256_or_si256(self.0, _mm256_sll_epi16(more.0, _mm_cvtsi32_si128(i32::from(shift)))) })
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16]) -> Self {
        // SAFETY: see the machine; there are 16 bytes.
        Self(unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, self.0)
        })
    }
}

/// See [`round_with`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn round(x: &[f32], blocks: &mut [Block]) {
    round_with(x, blocks);
}

/// Puts the codes of all rows side by side.
#[target_feature(enable = "avx2,fma,f16c")]
fn interleave_all(part: &Part<'_>, panel: &mut Panel) {
    for strip in 0..part.columns / (WIDTH * RUN) {
        interleave(panel, strip, 0);
        interleave(panel, strip, WIDTH);
    }
}

/// Puts 32 codes of eight rows side by side: transposes eight times eight runs.
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
            part: &Part<'_>,
            x: &Activations,
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

        /// Adds the products of eight lanes with N rows of x, where `SIZE` elements share a scale.
        #[target_feature(enable = $features)]
        #[inline]
        fn $tile<const SIZE: usize, const BYTES: bool, const N: usize>(
            panel: &Panel,
            lane: usize,
            (x, stride): (&[Block], usize),
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
                        // SAFETY: the block is among those of x, as was asserted, and a run lies within a block.
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
super::few::kernel!("avx2,fma,f16c", few, few_rows, few_unit, few_run, few_dot);
super::few::kernel!("avx2,fma,f16c,avxvnni", few_vnni, few_rows_vnni, few_unit_vnni, few_run_vnni, few_dot_vnni);

/// Adds the products of four codes in each lane.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn dot<const BYTES: bool>(sums: __m256i, codes: __m256i, quants: __m256i) -> __m256i {
    if !BYTES {
        let pairs = _mm256_maddubs_epi16(codes, quants);
        return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    // Two products of eight bits do not fit into the sixteen that they are added in: the highest bit comes by itself.
    let low = _mm256_maddubs_epi16(_mm256_and_si256(codes, _mm256_set1_epi8(127)), quants);
    let high = _mm256_and_si256(_mm256_srli_epi16::<7>(codes), _mm256_set1_epi8(1));
    let high = _mm256_maddubs_epi16(high, quants);
    let low = _mm256_madd_epi16(low, _mm256_set1_epi16(1));
    _mm256_add_epi32(sums, _mm256_add_epi32(low, _mm256_madd_epi16(high, _mm256_set1_epi16(128))))
}

/// The same in one instruction.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
fn dot_vnni<const BYTES: bool>(sums: __m256i, codes: __m256i, quants: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sums, codes, quants)
}

/// The same for a layout.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn few_dot<L: Layout>(sums: __m256i, codes: __m256i, quants: __m256i) -> __m256i {
    if L::WIDE { dot::<true>(sums, codes, quants) } else { dot::<false>(sums, codes, quants) }
}

/// The same for a layout, in one instruction.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
fn few_dot_vnni<L: Layout>(sums: __m256i, codes: __m256i, quants: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sums, codes, quants)
}

/// Eight numbers from a lane on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn floats(numbers: &[f32; LANES], lane: usize) -> __m256 {
    let numbers = &numbers[lane..lane + WIDTH];
    // SAFETY: there are eight elements.
    unsafe { _mm256_loadu_ps(numbers.as_ptr()) }
}
