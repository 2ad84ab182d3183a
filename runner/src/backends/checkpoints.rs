//! Earlier states of a sequence, for states that cannot be truncated.

use std::collections::VecDeque;

use protocol::limits::CHECKPOINTS;

/// States with the lengths that they are of, the oldest first.
#[derive(Clone, Debug)]
pub(super) struct Checkpoints<T>(VecDeque<(usize, T)>);

impl<T> Checkpoints<T> {
    pub(super) fn new() -> Self {
        Self(VecDeque::new())
    }

    /// The longest length, `length` at most, that a state of `current` tokens can go back to.
    pub(super) fn nearest(&self, current: usize, length: usize) -> usize {
        if current <= length {
            return current;
        }
        self.0.iter().rev().map(|(saved, _)| *saved).find(|saved| *saved <= length).unwrap_or(0)
    }

    /// The state of so many tokens, where there is one; later ones are forgotten.
    pub(super) fn back_to(&mut self, length: usize) -> Option<&T> {
        self.0.retain(|(saved, _)| *saved <= length);
        self.0.back().filter(|(saved, _)| *saved == length).map(|(_, state)| state)
    }

    /// Remembers a state, which `save` makes, of the memory of one that is forgotten where there are too many.
    pub(super) fn push(&mut self, length: usize, save: impl FnOnce(Option<T>) -> T) {
        if self.0.back().is_some_and(|(saved, _)| *saved == length) {
            return;
        }
        let oldest = if self.0.len() == CHECKPOINTS { self.0.pop_front() } else { None };
        self.0.push_back((length, save(oldest.map(|(_, state)| state))));
    }
}
