//! What a generation needs of the logits after a token: where a backend can find it where they are, they need not come to the host.

use device::Change;

/// The best of logits, after some changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Selection {
    /// How many of the best, up to [`device::MOST_BEST`].
    pub(crate) count: usize,
    /// Of a token one at most.
    pub(crate) changes: Vec<Change>,
    /// Bits of tokens that may come, the first in the lowest bit; tokens behind the last may not. `None`: all may.
    pub(crate) allowed: Option<Vec<u32>>,
}

impl Selection {
    pub(crate) fn view(&self) -> device::Selection<'_> {
        device::Selection { count: self.count, changes: &self.changes, allowed: self.allowed.as_deref() }
    }
}
