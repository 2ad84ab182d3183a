//! Helpers of the AVX2 encoders: loading and storing vectors, maxima of eight groups, rounding and
//! packing.
//!
//! The functions require the CPU features that they are compiled for. Code that enters them must
//! have checked [`available`].
#![expect(unsafe_code, reason = "vectors are read from arrays and written to arrays of their size")]

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_UNORD_Q, _mm_loadu_si128, _mm_packus_epi16, _mm_packus_epi32, _mm_storeu_si128,
    _mm256_add_epi32, _mm256_and_si256, _mm256_blendv_epi8, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_castsi256_si128, _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_extracti128_si256, _mm256_loadu_ps,
    _mm256_maddubs_epi16, _mm256_max_ps, _mm256_or_si256, _mm256_packs_epi16, _mm256_packs_epi32, _mm256_packus_epi16,
    _mm256_permute2f128_ps, _mm256_permutevar8x32_epi32, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setr_epi32,
    _mm256_shuffle_ps, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_unpackhi_ps,
    _mm256_unpacklo_ps,
};

use crate::Dtype;

/// Float32 numbers per vector.
pub(in super::super) const LANES: usize = 8;

/// Elements whose codes are computed together: as many as a vector has bytes.
pub(in super::super) const RUN: usize = 32;

/// Whether the CPU has the features that these functions and their users are compiled for.
#[inline]
pub(in super::super) fn available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

/// Loads eight numbers.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn load(numbers: &[f32; LANES]) -> __m256 {
    // SAFETY: the array has as many bytes as the vector; no alignment is required.
    unsafe { _mm256_loadu_ps(numbers.as_ptr()) }
}

/// Loads 32 numbers.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn load_run(numbers: &[f32; RUN]) -> [__m256; 4] {
    let [first, second, third, fourth] = numbers.as_chunks::<LANES>().0 else {
        unreachable!("invariant: a run is four vectors")
    };
    [load(first), load(second), load(third), load(fourth)]
}

/// Stores eight numbers.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn store(vector: __m256, out: &mut [f32; LANES]) {
    // SAFETY: the array has as many bytes as the vector; no alignment is required.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), vector) }
}

/// Returns eight numbers as an array.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn numbers(vector: __m256) -> [f32; LANES] {
    let mut numbers = [0.0; LANES];
    store(vector, &mut numbers);
    numbers
}

/// Loads sixteen bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn load_bytes(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array has as many bytes as the vector; no alignment is required.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_half(vector: __m128i, out: &mut [u8; 16]) {
    // SAFETY: the array has as many bytes as the vector; no alignment is required.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), vector) }
}

/// Returns 32 bytes as an array.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn bytes(vector: __m256i) -> [u8; RUN] {
    let mut bytes = [0; RUN];
    // SAFETY: the array has as many bytes as the vector; no alignment is required.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) };
    bytes
}

/// Returns the largest lane of each of eight vectors, in their order. The vectors contain no NaN.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn greatest(vectors: [__m256; LANES]) -> __m256 {
    let [a, b, c, d, e, f, g, h] = vectors;
    let front = greatest_of_four(a, b, c, d);
    let back = greatest_of_four(e, f, g, h);
    _mm256_max_ps(_mm256_permute2f128_ps::<0x20>(front, back), _mm256_permute2f128_ps::<0x31>(front, back))
}

/// Returns, for each of four vectors, the largest of the lower and of the upper four lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn greatest_of_four(a: __m256, b: __m256, c: __m256, d: __m256) -> __m256 {
    let ab = _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let cd = _mm256_max_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    _mm256_max_ps(_mm256_shuffle_ps::<0b01_00_01_00>(ab, cd), _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd))
}

/// Rounds to the nearest numbers of the type, as [`super::super::float::round`] does.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in super::super) fn round(dtype: Dtype, vector: __m256) -> __m256 {
    match dtype {
        Dtype::F32 => vector,
        Dtype::F16 => _mm256_cvtph_ps(_mm256_cvtps_ph::<0>(vector)),
        _ => {
            let kept = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            _mm256_castsi256_ps(_mm256_and_si256(near_bf16(vector), kept))
        }
    }
}

/// Rounds to the nearest BF16 in the upper halves; the lower halves are unspecified. NaN becomes
/// quiet.
#[inline]
#[target_feature(enable = "avx2")]
fn near_bf16(vector: __m256) -> __m256i {
    let bits = _mm256_castps_si256(vector);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(vector, vector));
    _mm256_blendv_epi8(nearest, quiet, nan)
}

/// Writes the nearest numbers of the type, as [`super::super::float::encode`] does, up to the
/// length of `out`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in super::super) fn write(dtype: Dtype, vector: __m256, out: &mut [u8]) {
    let halves = match dtype {
        Dtype::F32 => return copy_front(&bytes(_mm256_castps_si256(vector)), out),
        Dtype::F16 => _mm256_cvtps_ph::<0>(vector),
        _ => {
            let words = _mm256_srli_epi32::<16>(near_bf16(vector));
            _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words))
        }
    };
    let mut bytes = [0; 16];
    store_half(halves, &mut bytes);
    copy_front(&bytes, out);
}

/// Copies as many bytes as fit. Usually all fit, and the copy is a single instruction.
#[inline]
fn copy_front<const SIZE: usize>(bytes: &[u8; SIZE], out: &mut [u8]) {
    if let Ok(out) = <&mut [u8; SIZE]>::try_from(&mut *out) {
        *out = *bytes;
    } else {
        out.copy_from_slice(&bytes[..out.len()]);
    }
}

/// Converts 32 integers to bytes, saturating to 0 or 255.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn unsigned_bytes([a, b, c, d]: [__m256i; 4]) -> __m256i {
    in_order(_mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d)))
}

/// Converts 32 integers to signed bytes, saturating to -128 or 127. The bytes are in packed order;
/// [`in_order`] restores the order.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn signed_bytes([a, b, c, d]: [__m256i; 4]) -> __m256i {
    _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d))
}

/// Restores the order of packed bytes: packing works on halves of vectors, which leaves runs of
/// four bytes in the order 0 2 4 6 1 3 5 7.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn in_order(bytes: __m256i) -> __m256i {
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// Writes 4-bit codes, two per byte, the first in the low half.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn write_nibbles(codes: __m256i, out: &mut [u8; RUN / 2]) {
    let pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001));
    store_half(_mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs)), out);
}
