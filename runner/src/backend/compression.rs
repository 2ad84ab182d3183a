//! Compressed entries of a sequence, each of which stands for a segment of positions.

use super::{Backend, ChosenPositions, SequenceId, StatesBySequence};

/// Makes entries, see [`architectures::Compression`].
#[derive(Debug)]
pub(crate) struct Compression<B: Backend> {
    /// Number of positions of a segment.
    pub(crate) every: usize,
    /// Whether an entry also compresses the segment before its own.
    pub(crate) overlaps: bool,
    /// Elements of an entry.
    pub(crate) width: usize,
    /// `[every, value_width]`.
    pub(crate) bias: B::Vector,
}

impl<B: Backend> Compression<B> {
    /// Returns the number of positions from which an entry is made.
    pub(crate) fn reach(&self) -> usize {
        if self.overlaps { 2 * self.every } else { self.every }
    }

    /// Returns the number of elements of a value and of a gate.
    pub(crate) fn value_width(&self) -> usize {
        if self.overlaps { 2 * self.width } else { self.width }
    }

    /// Returns the part of a value that the position at an index of the reach gives to the entry.
    pub(crate) fn part(&self, index: usize) -> std::ops::Range<usize> {
        let first = if self.overlaps { index / self.every * self.width } else { 0 };
        first..first + self.width
    }
}

/// Queries of an indexer that chooses entries, see [`architectures::EntryIndexer`].
#[derive(Debug)]
pub(crate) struct EntryChoice<'a, B: Backend> {
    /// `[tokens, heads · head_dim]`.
    pub(crate) queries: &'a B::Act,
    /// `[tokens, heads]`.
    pub(crate) weights: &'a B::Act,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    /// Number of entries that are chosen.
    pub(crate) count: usize,
    /// Number of positions of a segment.
    pub(crate) every: usize,
}

/// Returns the number of entries of `every` positions that a token at `position` sees.
pub(crate) fn entries_seen(position: usize, every: usize) -> usize {
    (position + 1) / every
}

/// Entries to which queries attend besides the keys of positions. Their values are themselves.
#[derive(Debug)]
pub(crate) struct AttendEntries<'a, B: Backend> {
    pub(crate) states: &'a StatesBySequence<B::State>,
    /// Number of positions of a segment.
    pub(crate) every: usize,
    /// The entries to which tokens attend, for each sequence; none if they attend to all that are
    /// complete.
    pub(crate) chosen: &'a [Option<ChosenPositions>],
}

impl<'a, B: Backend> AttendEntries<'a, B> {
    /// Returns the number of entries that a token at `position` sees.
    pub(crate) fn seen(&self, position: usize) -> usize {
        entries_seen(position, self.every)
    }

    /// Returns the entries of a sequence, and the choice among them.
    pub(crate) fn of(
        &self,
        index: usize,
        id: SequenceId,
    ) -> anyhow::Result<(&'a B::State, Option<&'a ChosenPositions>)> {
        Ok((self.states.get(id)?, self.chosen.get(index).and_then(Option::as_ref)))
    }
}
