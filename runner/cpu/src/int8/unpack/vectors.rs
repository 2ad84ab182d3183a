//! Unpacking with AVX2, FMA and F16C.
#![expect(unsafe_code, reason = "SIMD")]
#![expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]
#![expect(clippy::needless_range_loop, reason = "the place in several arrays")]

mod six_bits;

use std::arch::x86_64::{
    __m128i, __m256i, _MM_HINT_T1, _mm_and_si128, _mm_cmpeq_epi16, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32,
    _mm_loadl_epi64, _mm_loadu_si128, _mm_or_si128, _mm_prefetch, _mm_set_epi64x, _mm_set1_epi16, _mm_setzero_si128,
    _mm_slli_epi16, _mm_srli_epi16, _mm_unpackhi_epi16, _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi16,
    _mm_unpacklo_epi32, _mm_unpacklo_epi64, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_castsi128_si256,
    _mm256_castsi256_ps, _mm256_cmpeq_epi8, _mm256_cvtepu8_epi16, _mm256_cvtepu16_epi32, _mm256_cvtph_ps,
    _mm256_inserti128_si256, _mm256_loadu_si256, _mm256_mul_ps, _mm256_mullo_epi16, _mm256_or_si256,
    _mm256_packus_epi16, _mm256_permute2x128_si256, _mm256_permute4x64_epi64, _mm256_set1_epi8, _mm256_set1_epi32,
    _mm256_set1_epi64x, _mm256_set1_ps, _mm256_setr_epi32, _mm256_setr_epi64x, _mm256_setzero_si256,
    _mm256_shuffle_epi8, _mm256_sll_epi16, _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srl_epi16, _mm256_srlv_epi32,
    _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_epi8, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64,
    _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use super::{Codes, Factors, VectorUnit};
use crate::int8::BLOCK;
use crate::int8::panel_size::HALF;

/// The machine with AVX2, FMA and F16C.
///
/// # Safety
/// Code that unpacks with this machine must have checked for these instructions. This makes its
/// methods sound.
pub(in crate::int8) struct Vectors;

/// 32 codes in a vector.
#[derive(Clone, Copy)]
pub(in crate::int8) struct Vector(pub(in crate::int8) __m256i);

/// Order of quarters 0, 2, 1 and 3.
const QUARTERS: i32 = 0b11_01_10_00;

impl VectorUnit for Vectors {
    type Codes = Vector;

    #[inline(always)]
    fn half(bits: [u8; 2]) -> f32 {
        let bits = i32::from(u16::from_le_bytes(bits));
        // SAFETY: see the machine.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))) }
    }

    #[inline(always)]
    fn halves(bits: [u32; HALF]) -> [f32; HALF] {
        // SAFETY: see the machine.
        unsafe { halves(bits) }
    }

    #[inline(always)]
    fn float16(rows: [&[u8; 16]; HALF], lanes: &mut [[f32; HALF]; HALF]) {
        // SAFETY: see the machine; there are eight numbers each.
        unsafe {
            for (lane, words) in lanes.iter_mut().zip(words(rows)) {
                _mm256_storeu_ps(lane.as_mut_ptr(), _mm256_cvtph_ps(words));
            }
        }
    }

    #[inline(always)]
    fn bf16(rows: [&[u8; 16]; HALF], lanes: &mut [[f32; HALF]; HALF]) {
        // SAFETY: see the machine; there are eight numbers each.
        unsafe {
            for (lane, words) in lanes.iter_mut().zip(words(rows)) {
                let wide = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words));
                _mm256_storeu_ps(lane.as_mut_ptr(), _mm256_castsi256_ps(wide));
            }
        }
    }

    #[inline(always)]
    fn e4m3(pairs: [u16; HALF]) -> [[f32; HALF]; 2] {
        // SAFETY: see the machine.
        unsafe { e4m3(pairs) }
    }

    #[inline(always)]
    fn six_bits(packed: [&[u8; 12]; HALF], d: &[f32; HALF], m: &[f32; HALF], factors: &mut Factors) {
        // SAFETY: see the machine.
        unsafe { six_bits::six_bits(packed, d, m, factors) }
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

/// See [`Codes::stream`]. Each code is cut from the two bytes that contain it: shifted to their
/// upper end, then down.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn stream<const BITS: usize>(packed: &[u8]) -> __m256i {
    assert!(matches!(BITS, 2 | 3 | 5 | 6) && packed.len() == BITS * BLOCK / 8, "codes of a unit");
    let start = packed.as_ptr();
    let last = start.wrapping_add(packed.len() - loaded_with(BITS));
    // SAFETY: the stream has at least as many bytes as are loaded.
    let (first, second) = unsafe {
        if loaded_with(BITS) == 8 {
            (_mm_loadl_epi64(start.cast()), _mm_loadl_epi64(last.cast()))
        } else {
            (_mm_loadu_si128(start.cast()), _mm_loadu_si128(last.cast()))
        }
    };
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(first), second);
    let down = _mm_cvtsi32_si128(i32::from((16 - BITS) as u8));
    let mut codes = [_mm256_setzero_si256(); 2];
    for eight in 0..2 {
        let (places, factors) = const { [windows(BITS, 0), windows(BITS, 1)] }[eight];
        // SAFETY: there are 32 bytes each.
        let (places, factors) =
            unsafe { (_mm256_loadu_si256(places.as_ptr().cast()), _mm256_loadu_si256(factors.as_ptr().cast())) };
        let pairs = _mm256_shuffle_epi8(both, places);
        codes[eight] = _mm256_srl_epi16(_mm256_mullo_epi16(pairs, factors), down);
    }
    _mm256_packus_epi16(codes[0], codes[1])
}

/// Returns the number of bytes to load for 16 codes: the first bytes of a stream, or the last ones.
const fn loaded_with(bits: usize) -> usize {
    if bits < 4 { 8 } else { 16 }
}

/// Returns, for eight codes of both halves of a stream, the two bytes that contain each code, and
/// the factor that shifts it to their upper end.
const fn windows(bits: usize, eight: usize) -> ([u8; BLOCK], [u16; BLOCK / 2]) {
    let (mut places, mut factors) = ([0; BLOCK], [0; BLOCK / 2]);
    let mut at = 0;
    while at < BLOCK / 2 {
        let bit = (8 * eight + at % 8) * bits;
        // The bytes of the second half are the last ones that were loaded.
        let byte = bit / 8 + if at < 8 { 0 } else { loaded_with(bits) - 2 * bits };
        (places[2 * at], places[2 * at + 1]) = (byte as u8, byte as u8 + 1);
        factors[at] = 1 << (16 - bits - bit % 8);
        at += 1;
    }
    (places, factors)
}

/// See [`VectorUnit::halves`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn halves(bits: [u32; HALF]) -> [f32; HALF] {
    let mut own = [_mm_setzero_si128(); HALF];
    for at in 0..HALF {
        own[at] = _mm_cvtsi32_si128(bits[at].cast_signed());
    }
    let first = _mm_unpacklo_epi32(_mm_unpacklo_epi16(own[0], own[1]), _mm_unpacklo_epi16(own[2], own[3]));
    let second = _mm_unpacklo_epi32(_mm_unpacklo_epi16(own[4], own[5]), _mm_unpacklo_epi16(own[6], own[7]));
    let mut numbers = [0.0; HALF];
    // SAFETY: there are eight numbers.
    unsafe { _mm256_storeu_ps(numbers.as_mut_ptr(), _mm256_cvtph_ps(_mm_unpacklo_epi64(first, second))) };
    numbers
}

/// Returns the first words of all rows, the second ones, and so on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn words(rows: [&[u8; 16]; HALF]) -> [__m128i; HALF] {
    let mut own = [_mm_setzero_si128(); HALF];
    for (own, row) in own.iter_mut().zip(rows) {
        // SAFETY: there are 16 bytes.
        *own = unsafe { _mm_loadu_si128(row.as_ptr().cast()) };
    }
    let [a, b, c, d, e, f, g, h] = own;
    let pairs = |a, b| [_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)];
    let (low, high) = (fours(pairs(a, b), pairs(c, d)), fours(pairs(e, f), pairs(g, h)));
    let mut words = [_mm_setzero_si128(); HALF];
    for at in 0..HALF / 2 {
        words[2 * at] = _mm_unpacklo_epi64(low[at], high[at]);
        words[2 * at + 1] = _mm_unpackhi_epi64(low[at], high[at]);
    }
    words
}

/// Interleaves pairs of words of two rows with those of two more rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fours([a, b]: [__m128i; 2], [c, d]: [__m128i; 2]) -> [__m128i; 4] {
    [_mm_unpacklo_epi32(a, c), _mm_unpackhi_epi32(a, c), _mm_unpacklo_epi32(b, d), _mm_unpackhi_epi32(b, d)]
}

/// Puts eight numbers into a vector without going through memory: loading a vector right after
/// storing its parts would stall.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn side_by_side(bits: [u16; HALF]) -> __m128i {
    let [a, b, c, d, e, f, g, h] = bits;
    _mm_set_epi64x(four(e, f, g, h).cast_signed(), four(a, b, c, d).cast_signed())
}

#[inline(always)]
fn four(a: u16, b: u16, c: u16, d: u16) -> u64 {
    u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48
}

/// See [`VectorUnit::e4m3`]. As float16, the same exponent and mantissa bits are a number smaller
/// by a factor of 2⁸.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn e4m3(pairs: [u16; HALF]) -> [[f32; HALF]; 2] {
    let pairs = side_by_side(pairs);
    let mut numbers = [[0.0; HALF]; 2];
    for (second, numbers) in numbers.iter_mut().enumerate() {
        let codes = if second == 0 { pairs } else { _mm_srli_epi16::<8>(pairs) };
        let magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7f));
        let sign = _mm_slli_epi16::<8>(_mm_and_si128(codes, _mm_set1_epi16(0x80)));
        let nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7c00));
        let half = _mm_or_si128(_mm_or_si128(_mm_slli_epi16::<7>(magnitude), sign), nan);
        let all = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0));
        // SAFETY: there are eight numbers.
        unsafe { _mm256_storeu_ps(numbers.as_mut_ptr(), all) };
    }
    numbers
}

/// See [`VectorUnit::transpose`].
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

/// Transposes eight times eight numbers of 32 bits.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::int8) fn transposed(rows: [__m256i; HALF]) -> [__m256i; HALF] {
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
            // Each byte becomes a pair of bytes, the second of which gets the high nibble.
            let pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128(packed.as_ptr().cast()));
            let both = _mm256_or_si256(pairs, _mm256_slli_epi16::<4>(pairs));
            _mm256_and_si256(both, _mm256_set1_epi8(15))
        })
    }

    #[inline(always)]
    fn stream<const BITS: usize>(packed: &[u8]) -> Self {
        // SAFETY: see the machine.
        Self(unsafe { stream::<BITS>(packed) })
    }

    #[inline(always)]
    fn with_quarters_swapped(self) -> Self {
        // SAFETY: see the machine.
        Self(unsafe { _mm256_permute4x64_epi64::<QUARTERS>(self.0) })
    }

    #[inline(always)]
    fn spread(bits: [u8; BLOCK / 8]) -> Self {
        // SAFETY: see the machine.
        Self(unsafe { _mm256_and_si256(where_set(bits), _mm256_set1_epi8(1)) })
    }

    #[inline(always)]
    fn bits(self, shift: u8, mask: u8) -> Self {
        // SAFETY: see the machine. The mask excludes bits from the neighbouring byte.
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

    #[inline(always)]
    fn eights([first, second, third, fourth]: [u64; BLOCK / 8]) -> Self {
        // SAFETY: see the machine.
        Self(unsafe {
            _mm256_setr_epi64x(first.cast_signed(), second.cast_signed(), third.cast_signed(), fourth.cast_signed())
        })
    }

    #[inline(always)]
    fn mirrored(self, bits: [u8; BLOCK / 8]) -> Self {
        // SAFETY: see the machine.
        Self(unsafe {
            let negative = where_set(bits);
            let signed = _mm256_sub_epi8(_mm256_xor_si256(self.0, negative), negative);
            _mm256_and_si256(signed, _mm256_set1_epi8(127))
        })
    }
}

/// Returns a byte for each bit, all ones if the bit is set. The first bit is the lowest of the
/// first byte.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn where_set(bits: [u8; BLOCK / 8]) -> __m256i {
    // Repeats each of the four bytes eight times, then selects another bit in each copy.
    let places = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(bits)), places);
    let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each)
}
