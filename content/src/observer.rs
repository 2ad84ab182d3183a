//! The observer of a long operation: its progress, and whether it continues.

use std::ops::{Add, AddAssign};

use crate::Descriptor;

/// Receives the progress of an operation, and decides whether it continues. Imports, transfers and
/// maintenance report to one.
pub trait Observer: Sync {
    /// Reports that a step begins.
    fn status(&self, status: String);
    /// Reports that `done` of `total` bytes are processed.
    fn bytes(&self, done: u64, total: u64);
    /// Reports that a layer is complete, with its name and its blob. The default does nothing, for
    /// observers that only count bytes.
    fn blob(&self, _name: &str, _blob: &Descriptor) {}
    /// Whether the operation should continue.
    fn goes_on(&self) -> bool;
}

/// An observer that ignores progress and never cancels.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Observer for Unwatched {
    fn status(&self, _status: String) {}

    fn bytes(&self, _done: u64, _total: u64) {}

    fn goes_on(&self) -> bool {
        true
    }
}

/// A number of blobs and their total size.
///
/// # Examples
///
/// ```
/// use lode_content::Amount;
///
/// let amount: Amount = [Amount::of_blob(12), Amount::of_blob(30)].into_iter().sum();
/// assert_eq!(amount, Amount { blobs: 2, bytes: 42 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of blobs.
    pub blobs: u64,
    /// Total size in bytes.
    pub bytes: u64,
}

impl Amount {
    /// One blob of `bytes` bytes.
    pub const fn of_blob(bytes: u64) -> Self {
        Self { blobs: 1, bytes }
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { blobs: self.blobs + other.blobs, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), Add::add)
    }
}
