//! SIMD lanes: eight float32 numbers, one of each of eight sub-blocks, that go through the same
//! operations.
//!
//! Every operation conforms to IEEE 754, so that all implementations give the same bits.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;

use super::rounding;

/// A vector of eight float32 numbers.
pub(in super::super) trait Lanes: Copy {
    /// A mask: in each lane all bits are set, or none.
    type Mask: Copy;

    /// Loads numbers from an array.
    fn new(numbers: [f32; 8]) -> Self;
    /// Stores the numbers in an array.
    fn numbers(self) -> [f32; 8];
    /// Broadcasts a number to all lanes.
    fn splat(number: f32) -> Self;

    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self · other`.
    fn mul(self, other: Self) -> Self;
    /// `self / other`.
    fn div(self, other: Self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// Absolute value with the sign of another number.
    fn copysign(self, sign: Self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// [`rounding::nearest`].
    fn nearest(self) -> Self;

    /// The low bytes of [`rounding::truncate`], for 32 numbers.
    fn bytes(numbers: [Self; 4]) -> [u8; 32];

    /// Mask of lanes where `self < other`; false for NaN.
    fn less(self, other: Self) -> Self::Mask;
    /// Bitwise and of two masks.
    fn and(a: Self::Mask, b: Self::Mask) -> Self::Mask;
    /// Whether the mask is empty.
    fn none(mask: Self::Mask) -> bool;
    /// Selects `yes` where the mask is set, else `no`.
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;

    /// The smaller number; `other` if they are equal or one is NaN.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self::select(self.less(other), self, other)
    }

    /// The larger number; `other` if they are equal or one is NaN.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self::select(other.less(self), self, other)
    }

    /// Limits numbers to the range from `least` to `greatest`.
    #[inline(always)]
    fn clamp(self, least: Self, greatest: Self) -> Self {
        self.min(greatest).max(least)
    }
}

/// Portable lanes.
#[derive(Clone, Copy)]
pub(in super::super) struct Portable([f32; 8]);

impl Portable {
    #[inline(always)]
    fn map(self, operation: impl Fn(f32) -> f32) -> Self {
        Self(self.0.map(operation))
    }

    #[inline(always)]
    fn zip(self, other: Self, operation: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| operation(self.0[lane], other.0[lane])))
    }
}

impl Lanes for Portable {
    type Mask = [bool; 8];

    #[inline(always)]
    fn new(numbers: [f32; 8]) -> Self {
        Self(numbers)
    }
    #[inline(always)]
    fn numbers(self) -> [f32; 8] {
        self.0
    }
    #[inline(always)]
    fn splat(number: f32) -> Self {
        Self([number; 8])
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self.map(f32::abs)
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        self.zip(sign, f32::copysign)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        self.map(f32::sqrt)
    }
    #[inline(always)]
    fn bytes(numbers: [Self; 4]) -> [u8; 32] {
        std::array::from_fn(|i| rounding::truncate(numbers[i / 8].0[i % 8]) as u8)
    }
    #[inline(always)]
    fn nearest(self) -> Self {
        self.map(|number| rounding::nearest(number) as f32)
    }
    #[inline(always)]
    fn less(self, other: Self) -> Self::Mask {
        std::array::from_fn(|lane| self.0[lane] < other.0[lane])
    }
    #[inline(always)]
    fn and(a: Self::Mask, b: Self::Mask) -> Self::Mask {
        std::array::from_fn(|lane| a[lane] && b[lane])
    }
    #[inline(always)]
    fn none(mask: Self::Mask) -> bool {
        mask == [false; 8]
    }
    #[inline(always)]
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|lane| if mask[lane] { yes.0[lane] } else { no.0[lane] }))
    }
}
