//! A saturating number of bytes, elements or tokens.
//!
//! The factors come from untrusted files. A product that overflows stays at the largest number
//! instead of wrapping to a small one. Division by zero gives zero.

use std::ops::{Add, Div, Mul};

/// A number with saturating arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Amount(pub(super) u64);

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Add<Amount> for u64 {
    type Output = Amount;

    fn add(self, other: Amount) -> Amount {
        Amount(self) + other
    }
}

impl Mul for Amount {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self(self.0.saturating_mul(other.0))
    }
}

impl Mul<Amount> for u64 {
    type Output = Amount;

    fn mul(self, other: Amount) -> Amount {
        Amount(self) * other
    }
}

impl Div for Amount {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        Self(self.0.checked_div(other.0).unwrap_or(0))
    }
}

impl Div<u64> for Amount {
    type Output = Self;

    fn div(self, other: u64) -> Self {
        self / Self(other)
    }
}

/// Returns the saturating sum of `sizes`.
pub(super) fn sum(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().fold(0, u64::saturating_add)
}
