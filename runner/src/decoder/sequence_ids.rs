//! The ids of open sequences. An id is an index into the states of each layer, so free ids are used
//! again, the lowest first.

use std::sync::{Mutex, PoisonError};

use crate::backend::SequenceId;

/// For each id, whether its sequence is open.
#[derive(Debug, Default)]
pub(super) struct SequenceIds(Mutex<Vec<bool>>);

impl SequenceIds {
    /// Returns an id that no open sequence has.
    pub(super) fn take(&self) -> SequenceId {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = open.iter().position(|is_open| !is_open).unwrap_or(open.len());
        if id == open.len() {
            open.push(true);
        } else {
            open[id] = true;
        }
        SequenceId::new(id)
    }

    /// Takes back the id of a closed sequence.
    pub(super) fn give_back(&self, id: SequenceId) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open[id.index()] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ids_are_used_again() {
        let ids = SequenceIds::default();
        assert_eq!([ids.take(), ids.take(), ids.take()].map(SequenceId::index), [0, 1, 2]);
        ids.give_back(SequenceId::new(1));
        ids.give_back(SequenceId::new(0));
        assert_eq!([ids.take(), ids.take(), ids.take()].map(SequenceId::index), [0, 1, 3]);
    }
}
