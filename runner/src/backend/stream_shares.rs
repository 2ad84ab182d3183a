//! The shares by which parts of layers read, write and mix several residual streams.

use super::Backend;

/// Makes shares of the numbers of a part, see [`architectures::BalancedConnections`].
#[derive(Debug)]
pub(crate) struct StreamShares<B: Backend> {
    /// Number of streams.
    pub(crate) count: usize,
    pub(crate) factors: ShareFactors,
    /// `[numbers]`.
    pub(crate) bias: B::Vector,
    pub(crate) epsilon: f32,
    pub(crate) iterations: usize,
}

/// Factors of the numbers from which shares are made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ShareFactors {
    /// Of the numbers with which the last norm reads the streams.
    Read(f32),
    /// Of the numbers with which a part of a layer reads, writes and mixes them.
    ReadWriteMix([f32; 3]),
}

impl ShareFactors {
    /// Returns the factor of the numbers for reading.
    pub(crate) fn read(self) -> f32 {
        match self {
            Self::Read(read) | Self::ReadWriteMix([read, ..]) => read,
        }
    }

    /// Returns the number of numbers for `count` streams.
    pub(crate) fn numbers(self, count: usize) -> usize {
        match self {
            Self::Read(_) => count,
            Self::ReadWriteMix(_) => count * (2 + count),
        }
    }
}

impl<B: Backend> StreamShares<B> {
    /// Returns the number of shares that are made: of each stream in the input of the part; then
    /// for each stream behind the part, the shares of the streams before it and of its output.
    pub(crate) fn made(&self) -> usize {
        match self.factors {
            ShareFactors::Read(_) => self.count,
            ShareFactors::ReadWriteMix(_) => self.count + self.count * (self.count + 1),
        }
    }
}
