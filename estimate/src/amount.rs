//! A number of bytes, elements or tokens that is computed with.
//!
//! The factors come from files that anybody may have written: a product that does not fit stays at the largest number
//! instead of becoming a small one. Dividing by zero gives zero.

use std::ops::{Add, Div, Mul};

/// A saturating number.
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

/// The sum of sizes.
pub(super) fn sum(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().fold(0, u64::saturating_add)
}
