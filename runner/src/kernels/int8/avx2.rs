//! The integer dot products with AVX2, FMA and F16C.
#![expect(unsafe_code, reason = "SIMD")]

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_and_si128, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadu_si128,
    _mm_set1_epi8, _mm_srli_epi16, _mm_unpackhi_epi8, _mm_unpacklo_epi8, _mm256_abs_epi8, _mm256_and_si256,
    _mm256_cmpeq_epi8, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_or_si256, _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_epi64x, _mm256_set1_ps, _mm256_setr_epi64x, _mm256_setzero_ps, _mm256_shuffle_epi8, _mm256_sign_epi8,
    _mm256_storeu_ps, _mm256_xor_si256,
};

use super::row::Row;
use super::{Activations, BLOCK, Format};

/// The dot products with N rows of x from row `at` on.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile<const N: usize>(row: Row<'_>, x: &Activations, at: usize) -> [f32; N] {
    let mut sums = Sums { x, at, lanes: [_mm256_setzero_ps(); N], offsets: [0.0; N] };
    match row.format {
        Format::Q4_0 => {
            for (index, block) in row.codes.chunks_exact(18).enumerate() {
                let scale = number(block);
                sums.add(index, halves(&block[2..]), scale, -8.0 * scale);
            }
        }
        Format::Q4_1 => {
            for (index, block) in row.codes.chunks_exact(20).enumerate() {
                sums.add(index, halves(&block[4..]), number(block), number(&block[2..]));
            }
        }
        Format::Q5_0 => {
            for (index, block) in row.codes.chunks_exact(22).enumerate() {
                let scale = number(block);
                sums.add(index, with_fifth(halves(&block[6..]), &block[2..]), scale, -16.0 * scale);
            }
        }
        Format::Q5_1 => {
            for (index, block) in row.codes.chunks_exact(24).enumerate() {
                let codes = with_fifth(halves(&block[8..]), &block[4..]);
                sums.add(index, codes, number(block), number(&block[2..]));
            }
        }
        Format::Q8_0 => {
            for (index, block) in row.codes.chunks_exact(2 + BLOCK).enumerate() {
                sums.add_signed(index, load(&block[2..]), number(block), 0.0);
            }
        }
        Format::Int4 => {
            let groups = row.scales.iter().zip(row.offsets);
            for (group, (codes, (scale, offset))) in row.codes.chunks_exact(row.blocks * 16).zip(groups).enumerate() {
                for (index, codes) in codes.chunks_exact(16).enumerate() {
                    sums.add(group * row.blocks + index, pairs(codes), *scale, *offset);
                }
            }
        }
        Format::Int8 => {
            let groups = row.scales.iter().zip(row.offsets);
            for (group, (codes, (scale, offset))) in row.codes.chunks_exact(row.blocks * BLOCK).zip(groups).enumerate()
            {
                for (index, codes) in codes.chunks_exact(BLOCK).enumerate() {
                    let codes = _mm256_xor_si256(load(codes), _mm256_set1_epi8(i8::MIN));
                    sums.add_signed(group * row.blocks + index, codes, *scale, *offset);
                }
            }
        }
    }
    sums.total()
}

/// Sums on their way, for N rows of x.
struct Sums<'a, const N: usize> {
    x: &'a Activations,
    at: usize,
    lanes: [__m256; N],
    offsets: [f32; N],
}

impl<const N: usize> Sums<'_, N> {
    /// A block of codes from 0 to 127.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add(&mut self, index: usize, codes: __m256i, scale: f32, offset: f32) {
        for i in 0..N {
            let position = (self.at + i) * self.x.blocks + index;
            let pairs = _mm256_maddubs_epi16(codes, quants(&self.x.quants[position * BLOCK..]));
            self.finish(i, position, pairs, scale, offset);
        }
    }

    /// A block of codes from -128 to 127.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_signed(&mut self, index: usize, codes: __m256i, scale: f32, offset: f32) {
        let magnitudes = _mm256_abs_epi8(codes);
        for i in 0..N {
            let position = (self.at + i) * self.x.blocks + index;
            let signed = _mm256_sign_epi8(quants(&self.x.quants[position * BLOCK..]), codes);
            self.finish(i, position, _mm256_maddubs_epi16(magnitudes, signed), scale, offset);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn finish(&mut self, i: usize, position: usize, pairs: __m256i, scale: f32, offset: f32) {
        let sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        self.lanes[i] = _mm256_fmadd_ps(_mm256_set1_ps(scale * self.x.scales[position]), sums, self.lanes[i]);
        self.offsets[i] += offset * self.x.sums[position];
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn total(self) -> [f32; N] {
        let mut totals = self.offsets;
        for (total, lanes) in totals.iter_mut().zip(self.lanes) {
            let mut array = [0.0f32; 8];
            // SAFETY: the array has room for eight elements.
            unsafe { _mm256_storeu_ps(array.as_mut_ptr(), lanes) };
            *total += array.iter().sum::<f32>();
        }
        totals
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
fn quants(bytes: &[i8]) -> __m256i {
    assert!(bytes.len() >= BLOCK);
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
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
