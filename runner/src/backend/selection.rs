//! Selections from logits. A backend that can select on its device need not copy the logits to the
//! host.

use device::Change;

/// Selects the largest logits, after some changes to them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Selection {
    /// Number of logits to select, up to [`device::MOST_BEST`].
    pub(crate) count: usize,
    /// Changes to logits, at most one for each token.
    pub(crate) changes: Vec<Change>,
    /// Bit mask of the allowed tokens, the first token in the lowest bit. Tokens beyond the last
    /// bit are not allowed. `None` allows all tokens.
    pub(crate) allowed: Option<Vec<u32>>,
}

impl Selection {
    pub(crate) fn view(&self) -> device::Selection<'_> {
        device::Selection { count: self.count, changes: &self.changes, allowed: self.allowed.as_deref() }
    }
}
