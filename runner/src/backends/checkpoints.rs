//! Checkpoints of a sequence's state, for states that cannot be truncated.

use std::collections::VecDeque;

use protocol::limits::CHECKPOINTS;

/// Saved states with the number of tokens of each, oldest first.
#[derive(Clone, Debug)]
pub(super) struct Checkpoints<T>(VecDeque<(usize, T)>);

impl<T> Checkpoints<T> {
    pub(super) fn new() -> Self {
        Self(VecDeque::new())
    }

    /// Returns the greatest length, at most `length`, to which a state of `current` tokens can be
    /// restored.
    pub(super) fn nearest(&self, current: usize, length: usize) -> usize {
        if current <= length {
            return current;
        }
        self.0.iter().rev().map(|(saved, _)| *saved).find(|saved| *saved <= length).unwrap_or(0)
    }

    /// Returns the state saved at exactly `length` tokens, if any, and discards all later ones.
    pub(super) fn back_to(&mut self, length: usize) -> Option<&T> {
        self.0.retain(|(saved, _)| *saved <= length);
        self.0.back().filter(|(saved, _)| *saved == length).map(|(_, state)| state)
    }

    /// Saves a state, which `save` creates. If there are already [`CHECKPOINTS`] states, `save`
    /// gets the oldest one in order to reuse its memory.
    pub(super) fn push(&mut self, length: usize, save: impl FnOnce(Option<T>) -> T) {
        if self.0.back().is_some_and(|(saved, _)| *saved == length) {
            return;
        }
        let oldest = if self.0.len() == CHECKPOINTS { self.0.pop_front() } else { None };
        self.0.push_back((length, save(oldest.map(|(_, state)| state))));
    }
}
