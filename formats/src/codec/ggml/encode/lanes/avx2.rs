//! Lanes in an AVX2 register.
//!
//! Only code that runs after AVX2 was detected uses this type; its operations are inlined there.

#![expect(unsafe_code, reason = "instructions of AVX2")]

use std::arch::x86_64::{
    __m256, __m256i, _CMP_LT_OQ, _mm256_add_ps, _mm256_and_ps, _mm256_and_si256, _mm256_andnot_ps, _mm256_blendv_ps,
    _mm256_castps_si256, _mm256_cmp_ps, _mm256_cvtepi32_ps, _mm256_cvttps_epi32, _mm256_div_ps, _mm256_loadu_ps,
    _mm256_max_ps, _mm256_min_ps, _mm256_movemask_ps, _mm256_mul_ps, _mm256_or_ps, _mm256_packus_epi16,
    _mm256_packus_epi32, _mm256_permutevar8x32_epi32, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32,
    _mm256_sqrt_ps, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_epi32, _mm256_sub_ps,
};

use super::super::rounding::MAGIC;
use super::Lanes;

/// Eight numbers in a register.
#[derive(Clone, Copy)]
pub(in super::super::super) struct Avx2(__m256);

/// Defines operations on registers.
macro_rules! instructions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name($($argument: $type),*) -> $result {
            // SAFETY: AVX2 was detected, see the module. The instructions read and write registers
            // only.
            unsafe { $body }
        }
    )*};
}

impl Avx2 {
    instructions! {
        low_bytes(self: Self) -> __m256i =
            _mm256_and_si256(_mm256_cvttps_epi32(self.0), _mm256_set1_epi32(255));
    }
}

impl Lanes for Avx2 {
    type Mask = __m256;

    #[inline(always)]
    fn bytes(numbers: [Self; 4]) -> [u8; 32] {
        let [first, second, third, fourth] = numbers;
        let mut bytes = [0; 32];
        // SAFETY: AVX2 was detected; 32 bytes are written to an array of 32.
        unsafe {
            // Packing works on halves of registers, which leaves runs of four bytes in the order 0
            // 2 4 6 1 3 5 7.
            let front = _mm256_packus_epi32(first.low_bytes(), second.low_bytes());
            let back = _mm256_packus_epi32(third.low_bytes(), fourth.low_bytes());
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let packed = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(front, back), order);
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), packed);
        }
        bytes
    }

    #[inline(always)]
    fn new(numbers: [f32; 8]) -> Self {
        // SAFETY: AVX2 was detected; eight numbers are read from an array of eight.
        Self(unsafe { _mm256_loadu_ps(numbers.as_ptr()) })
    }

    #[inline(always)]
    fn numbers(self) -> [f32; 8] {
        let mut numbers = [0.0; 8];
        // SAFETY: AVX2 was detected; eight numbers are written to an array of eight.
        unsafe { _mm256_storeu_ps(numbers.as_mut_ptr(), self.0) };
        numbers
    }

    instructions! {
        splat(number: f32) -> Self = Self(_mm256_set1_ps(number));
        add(self: Self, other: Self) -> Self = Self(_mm256_add_ps(self.0, other.0));
        sub(self: Self, other: Self) -> Self = Self(_mm256_sub_ps(self.0, other.0));
        mul(self: Self, other: Self) -> Self = Self(_mm256_mul_ps(self.0, other.0));
        div(self: Self, other: Self) -> Self = Self(_mm256_div_ps(self.0, other.0));
        abs(self: Self) -> Self = Self(_mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0));
        copysign(self: Self, sign: Self) -> Self =
            Self(_mm256_or_ps(self.abs().0, _mm256_and_ps(_mm256_set1_ps(-0.0), sign.0)));
        sqrt(self: Self) -> Self = Self(_mm256_sqrt_ps(self.0));
        less(self: Self, other: Self) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, other.0);
        and(a: __m256, b: __m256) -> __m256 = _mm256_and_ps(a, b);
        none(mask: __m256) -> bool = _mm256_movemask_ps(mask) == 0;
        select(mask: __m256, yes: Self, no: Self) -> Self = Self(_mm256_blendv_ps(no.0, yes.0, mask));
        // Both instructions return the second operand if one is NaN, or if both are zeros.
        min(self: Self, other: Self) -> Self = Self(_mm256_min_ps(self.0, other.0));
        max(self: Self, other: Self) -> Self = Self(_mm256_max_ps(self.0, other.0));
        nearest(self: Self) -> Self = Self(_mm256_cvtepi32_ps(_mm256_sub_epi32(
            _mm256_and_si256(
                _mm256_castps_si256(_mm256_add_ps(self.0, _mm256_set1_ps(MAGIC))),
                _mm256_set1_epi32(0x007f_ffff),
            ),
            _mm256_set1_epi32(0x0040_0000),
        )));
    }
}
