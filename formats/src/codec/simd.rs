//! What codecs do with vectors where the CPU has AVX2 and F16C: the same results as the portable code, bit for bit.
#![expect(unsafe_code, reason = "SIMD")]

use std::arch::x86_64::{__m128i, __m256, _mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};

/// Float32 numbers in a vector.
const LANES: usize = 8;

/// Whether the CPU has all that the functions with `avx2,f16c` ask for.
#[inline]
fn available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

/// Writes eight numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn store(vector: __m256, out: &mut [f32; LANES]) {
    // SAFETY: the array has as many bytes as the vector; no alignment is asked for.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), vector) }
}

/// Sixteen bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn load_bytes(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array has as many bytes as the vector; no alignment is asked for.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Widens F16 numbers; false where the CPU cannot and nothing was done.
pub(super) fn widen_f16(bytes: &[u8], out: &mut [f32]) -> bool {
    if !available() {
        return false;
    }
    // SAFETY: the features were detected.
    unsafe { widen_f16_avx2(bytes, out) };
    true
}

#[target_feature(enable = "avx2,f16c")]
fn widen_f16_avx2(bytes: &[u8], out: &mut [f32]) {
    let (whole, rest) = out.as_chunks_mut::<LANES>();
    let (bytes, rest_bytes) = bytes.as_chunks::<16>();
    for (bytes, out) in bytes.iter().zip(whole) {
        store(_mm256_cvtph_ps(load_bytes(bytes)), out);
    }
    for (bytes, out) in rest_bytes.as_chunks::<2>().0.iter().zip(rest) {
        *out = half::f16::from_le_bytes(*bytes).to_f32_const();
    }
}
