//! The integer dot products with AVX2, FMA and F16C.
#![expect(unsafe_code, reason = "SIMD")]

use std::arch::x86_64::{
    __m128i, __m256i, _mm_and_si128, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadu_si128, _mm_set1_epi8,
    _mm_set1_ps, _mm_srli_epi16, _mm_unpackhi_epi8, _mm_unpacklo_epi8, _mm256_abs_epi8, _mm256_and_si256,
    _mm256_cmpeq_epi8, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_or_si256, _mm256_set_m128, _mm256_set_m128i, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_set1_ps, _mm256_setr_epi64x, _mm256_setzero_ps,
    _mm256_shuffle_epi8, _mm256_sign_epi8, _mm256_storeu_ps, _mm256_xor_si256,
};

use super::k_quants::{Kind, Unpacked, WIDE};
use super::row::{Row, round_with};
use super::{Activations, BLOCK, Format};

// The formats of blocks of 32, as parameters of functions.
const Q4_0: u8 = 0;
const Q4_1: u8 = 1;
const Q5_0: u8 = 2;
const Q5_1: u8 = 3;
const Q8_0: u8 = 4;
const INT4: u8 = 5;
const INT8: u8 = 6;

/// See [`round_with`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn round(x: &[f32; BLOCK], quants: &mut [i8]) -> (f32, f32) {
    round_with(x, quants)
}

/// The dot products with N rows of x from row `at` on.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile<const N: usize>(row: Row<'_>, x: &Activations, at: usize) -> [f32; N] {
    match row.format {
        Format::Q4_0 => dot::<N, Q4_0>(row, x, at),
        Format::Q4_1 => dot::<N, Q4_1>(row, x, at),
        Format::Q5_0 => dot::<N, Q5_0>(row, x, at),
        Format::Q5_1 => dot::<N, Q5_1>(row, x, at),
        Format::Q8_0 => dot::<N, Q8_0>(row, x, at),
        Format::Int4 => dot::<N, INT4>(row, x, at),
        Format::Int8 => dot::<N, INT8>(row, x, at),
        Format::Wide(Kind::Q2) => wide::<N, { Kind::Q2 as u8 }>(Kind::Q2, row.codes, x, at),
        Format::Wide(Kind::Q3) => wide::<N, { Kind::Q3 as u8 }>(Kind::Q3, row.codes, x, at),
        Format::Wide(Kind::Q4) => wide::<N, { Kind::Q4 as u8 }>(Kind::Q4, row.codes, x, at),
        Format::Wide(Kind::Q5) => wide::<N, { Kind::Q5 as u8 }>(Kind::Q5, row.codes, x, at),
        Format::Wide(Kind::Q6) => wide::<N, { Kind::Q6 as u8 }>(Kind::Q6, row.codes, x, at),
    }
}

/// The same for one format, `F`. All is in one function and the sums are arrays of its own, so that they stay in
/// registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot<const N: usize, const F: u8>(row: Row<'_>, x: &Activations, at: usize) -> [f32; N] {
    let signed = F == Q8_0 || F == INT8;
    let blocks = x.blocks;
    assert!(row.codes.len() == blocks * code_bytes(F));
    // Of these rows the first blocks, then the second ones, and so on.
    let tile = at * blocks..(at + N) * blocks;
    let quants = x.quants[tile.start * BLOCK..tile.end * BLOCK].as_chunks::<BLOCK>().0.as_chunks::<N>().0;
    let (scales, sums) = (x.scales[tile.clone()].as_chunks::<N>().0, x.sums[tile].as_chunks::<N>().0);
    let mut lanes = [_mm256_setzero_ps(); N];
    let mut offsets = [0.0f32; N];
    let mut group = Group { scale: 0.0, offset: 0.0, next: 0, left: 0 };
    let rows = row.codes.chunks_exact(code_bytes(F)).zip(quants).zip(scales.iter().zip(sums));
    for ((bytes, quants), (steps, sums)) in rows {
        let (codes, scale, offset) = block::<F>(bytes, row, &mut group);
        let magnitudes = if signed { _mm256_abs_epi8(codes) } else { codes };
        for i in 0..N {
            // SAFETY: a block has 32 quants.
            let quants = unsafe { _mm256_loadu_si256(quants[i].as_ptr().cast()) };
            let quants = if signed { _mm256_sign_epi8(quants, codes) } else { quants };
            let pairs = _mm256_maddubs_epi16(magnitudes, quants);
            let products = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            lanes[i] = _mm256_fmadd_ps(_mm256_set1_ps(scale * steps[i]), products, lanes[i]);
            if F != Q8_0 {
                offsets[i] += offset * sums[i];
            }
        }
    }
    for (total, lanes) in offsets.iter_mut().zip(lanes) {
        let mut array = [0.0f32; 8];
        // SAFETY: the array has room for eight elements.
        unsafe { _mm256_storeu_ps(array.as_mut_ptr(), lanes) };
        *total += array.iter().sum::<f32>();
    }
    offsets
}

/// The same for a K type, `K`; see [`k_quants::generic`](super::k_quants::generic).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn wide<const N: usize, const K: u8>(kind: Kind, row: &[u8], x: &Activations, at: usize) -> [f32; N] {
    let signed = K == Kind::Q3 as u8 || K == Kind::Q6 as u8;
    let blocks = x.blocks;
    assert!(row.len() * WIDE == blocks * BLOCK * kind.bytes());
    let tile = at * blocks..(at + N) * blocks;
    let quants = x.quants[tile.start * BLOCK..tile.end * BLOCK].as_chunks::<BLOCK>().0.as_chunks::<N>().0;
    let (steps, sums) = (x.scales[tile.clone()].as_chunks::<N>().0, x.sums[tile].as_chunks::<N>().0);
    let mut lanes = [_mm256_setzero_ps(); N];
    let mut offsets = [0.0f32; N];
    let mut unpacked = Unpacked::EMPTY;
    let wides = row.chunks_exact(kind.bytes()).zip(quants.chunks_exact(WIDE / BLOCK));
    let numbers = steps.chunks_exact(WIDE / BLOCK).zip(sums.chunks_exact(WIDE / BLOCK));
    for ((bytes, quants), (steps, sums)) in wides.zip(numbers) {
        unpacked.fill(kind, bytes, |bytes| number(bytes));
        for block in 0..WIDE / BLOCK {
            let codes = &unpacked.codes[block * BLOCK..][..BLOCK];
            // SAFETY: there are 32 codes.
            let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
            let [first, second] = [unpacked.scales[2 * block], unpacked.scales[2 * block + 1]];
            let scales = _mm256_set_m128(_mm_set1_ps(second), _mm_set1_ps(first));
            let magnitudes = if signed { _mm256_abs_epi8(codes) } else { codes };
            for i in 0..N {
                // SAFETY: a block has 32 quants.
                let quants = unsafe { _mm256_loadu_si256(quants[block][i].as_ptr().cast()) };
                let factors = if signed { _mm256_sign_epi8(quants, codes) } else { quants };
                let pairs = _mm256_maddubs_epi16(magnitudes, factors);
                let products = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                let step = _mm256_set1_ps(steps[block][i]);
                lanes[i] = _mm256_fmadd_ps(_mm256_mul_ps(scales, step), products, lanes[i]);
                if K == Kind::Q2 as u8 {
                    // Both halves have an offset of their own.
                    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), quants);
                    let sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                    let [first, second] = [unpacked.offsets[2 * block], unpacked.offsets[2 * block + 1]];
                    let both = _mm256_set_m128(_mm_set1_ps(second), _mm_set1_ps(first));
                    lanes[i] = _mm256_fmadd_ps(_mm256_mul_ps(both, step), sums, lanes[i]);
                } else if kind.has_offsets() {
                    offsets[i] += unpacked.offsets[2 * block] * sums[block][i];
                }
            }
        }
    }
    for (total, lanes) in offsets.iter_mut().zip(lanes) {
        let mut array = [0.0f32; 8];
        // SAFETY: the array has room for eight elements.
        unsafe { _mm256_storeu_ps(array.as_mut_ptr(), lanes) };
        *total += array.iter().sum::<f32>();
    }
    offsets
}

/// Bytes of a block of 32 codes, with all that is in it.
const fn code_bytes(format: u8) -> usize {
    match format {
        Q4_0 => 18,
        Q4_1 => 20,
        Q5_0 => 22,
        Q5_1 => 24,
        Q8_0 => 2 + BLOCK,
        INT4 => BLOCK / 2,
        _ => BLOCK,
    }
}

/// The affine group that a block is in.
struct Group {
    scale: f32,
    offset: f32,
    /// The group after it.
    next: usize,
    /// Blocks that are left of it.
    left: usize,
}

impl Group {
    /// Goes on by a block.
    #[inline]
    fn advance(&mut self, row: Row<'_>) -> (f32, f32) {
        if self.left == 0 {
            (self.scale, self.offset) = (row.scales[self.next], row.offsets[self.next]);
            (self.next, self.left) = (self.next + 1, row.blocks);
        }
        self.left -= 1;
        (self.scale, self.offset)
    }
}

/// A block's codes, what they are multiplied by, and what is added to each then. Codes from 0 to 127 are as they are, those
/// of `Q8_0` and of 8 bits are signed.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn block<const F: u8>(bytes: &[u8], row: Row<'_>, group: &mut Group) -> (__m256i, f32, f32) {
    if F == Q4_0 {
        let scale = number(bytes);
        (halves(&bytes[2..]), scale, -8.0 * scale)
    } else if F == Q4_1 {
        (halves(&bytes[4..]), number(bytes), number(&bytes[2..]))
    } else if F == Q5_0 {
        let scale = number(bytes);
        (with_fifth(halves(&bytes[6..]), &bytes[2..]), scale, -16.0 * scale)
    } else if F == Q5_1 {
        (with_fifth(halves(&bytes[8..]), &bytes[4..]), number(bytes), number(&bytes[2..]))
    } else if F == Q8_0 {
        (load(&bytes[2..]), number(bytes), 0.0)
    } else {
        let (scale, offset) = group.advance(row);
        if F == INT4 {
            (pairs(bytes), scale, offset)
        } else {
            (_mm256_xor_si256(load(bytes), _mm256_set1_epi8(i8::MIN)), scale, offset)
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn number(bytes: &[u8]) -> f32 {
    let bits = i32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(bytes: &[u8]) -> __m256i {
    assert!(bytes.len() >= BLOCK);
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// The low and the high bits of 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles(packed: &[u8]) -> (__m128i, __m128i) {
    assert!(packed.len() >= BLOCK / 2);
    // SAFETY: there are 16 bytes.
    let packed = unsafe { _mm_loadu_si128(packed.as_ptr().cast()) };
    let mask = _mm_set1_epi8(15);
    (_mm_and_si128(packed, mask), _mm_and_si128(_mm_srli_epi16(packed, 4), mask))
}

/// Codes as GGML packs them: the low bits of all bytes come first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halves(packed: &[u8]) -> __m256i {
    let (low, high) = nibbles(packed);
    _mm256_set_m128i(high, low)
}

/// Codes as affine weights have them: the low bits of each byte come before its high bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pairs(packed: &[u8]) -> __m256i {
    let (low, high) = nibbles(packed);
    _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high))
}

/// Adds 16 to each code whose bit is set in four bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_fifth(codes: __m256i, bits: &[u8]) -> __m256i {
    let bits = i32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    // Each of the four bytes eight times, then another bit of each.
    let eightfold = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), eightfold);
    let each = _mm256_set1_epi64x(0x8040_2010_0804_0201u64.cast_signed());
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
    _mm256_or_si256(codes, _mm256_and_si256(set, _mm256_set1_epi8(16)))
}
