//! Faster codecs for CPUs with AVX2, with the same results as the portable code, bit for bit.
//!
//! Most of them are the portable code itself, compiled a second time by [`run`]. Further helpers of
//! the group encoders are in `avx2`.
#![expect(unsafe_code, reason = "functions compiled for AVX2 are called where AVX2 was detected")]

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::widen_f16;

/// A loop that is compiled for AVX2 as well.
pub(super) trait Work {
    /// Runs the loop. This function and all functions that it calls must be `inline(always)`,
    /// because only inlined code is compiled for AVX2. Closures passed as arguments are not.
    fn run(self);
}

/// Runs the work with the CPU's best instruction set.
#[inline]
pub(super) fn run(work: impl Work) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the function requires only AVX2, which was just detected.
        return unsafe { x86_64::run(work) };
    }
    work.run();
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::_mm256_cvtph_ps;

    use super::Work;
    use super::avx2::{LANES, available, load_bytes, store};

    #[target_feature(enable = "avx2")]
    pub(super) fn run(work: impl Work) {
        work.run();
    }

    /// Widens F16 numbers. Returns false, without effect, if the CPU lacks the instructions.
    pub(in super::super) fn widen_f16(bytes: &[u8], out: &mut [f32]) -> bool {
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
}
