//! Sizes of panels.

/// Number of rows in a panel.
pub(super) const LANES: usize = 16;
/// Number of columns in a panel: the size of the largest blocks.
pub(super) const DEPTH: usize = 256;
/// Number of adjacent codes of a row.
pub(super) const RUN: usize = 4;
/// Number of rows that are unpacked together.
pub(super) const HALF: usize = LANES / 2;
/// Least number of elements that share a scale.
pub(super) const PART: usize = 16;
