//! Detects a long repetition: an answer repeats what it said in its last 4,000 tokens, perhaps with
//! a few words changed.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Least number of last tokens that are examined.
const WINDOW: u64 = 4000;
/// Length of a gram: so many tokens in the same order count as repeated.
const GRAM: usize = 16;
/// An answer repeats itself if at most one of so many of its grams is distinct: a cycle of up to a
/// quarter of the window.
const NEW: usize = 4;

/// The grams of the last tokens.
#[derive(Debug, Default)]
pub(super) struct LongRepetition {
    /// Number of last tokens that are examined; 0 if detection is off.
    window: usize,
    recent: VecDeque<u32>,
    /// Hashes of the grams, oldest first.
    grams: VecDeque<u64>,
    counts: HashMap<u64, u32>,
}

impl LongRepetition {
    /// Examines as many tokens as a short repetition may have, but at least [`WINDOW`]. A limit of
    /// 0 turns detection off.
    pub(super) fn new(repeat_limit: u64) -> Self {
        let window = if repeat_limit == 0 { 0 } else { repeat_limit.max(WINDOW) };
        Self { window: usize::try_from(window).unwrap_or(usize::MAX), ..Self::default() }
    }

    /// Adds a token; returns whether the answer repeats itself.
    pub(super) fn push(&mut self, token: u32) -> bool {
        if self.window == 0 {
            return false;
        }
        self.recent.push_back(token);
        if self.recent.len() > GRAM {
            self.recent.pop_front();
        }
        if self.recent.len() < GRAM {
            return false;
        }
        let mut hasher = DefaultHasher::new();
        self.recent.hash(&mut hasher);
        self.add(hasher.finish());
        self.grams.len() == self.window && self.counts.len() <= self.window / NEW
    }

    fn add(&mut self, gram: u64) {
        self.grams.push_back(gram);
        *self.counts.entry(gram).or_default() += 1;
        if self.grams.len() <= self.window {
            return;
        }
        let Some(oldest) = self.grams.pop_front() else { return };
        if let Some(count) = self.counts.get_mut(&oldest) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noticed(tokens: impl Iterator<Item = u32>) -> bool {
        let mut circle = LongRepetition::new(1024);
        tokens.take(12_000).any(|token| circle.push(token))
    }

    #[test]
    fn long_circles_are_noticed() {
        for period in [65, 300, 900] {
            assert!(noticed((0..period).cycle()), "{period}");
        }
        // One word differs in each cycle.
        let salad = (0..60).flat_map(|turn: u32| (0..200).map(move |at| if at == 100 { 1000 + turn } else { at }));
        assert!(noticed(salad));
        let mut off = LongRepetition::new(0);
        assert!(!(0..100).cycle().take(12_000).any(|token| off.push(token)));
        let mut patient = LongRepetition::new(20_000);
        assert!(!(0..100).cycle().take(12_000).any(|token| patient.push(token)));
    }

    #[test]
    fn what_goes_on_is_no_circle() {
        assert!(!noticed(0..12_000));
        // A table: the same words around values that differ.
        let row = |number: u32| (0..24).map(move |at| if at % 8 == 0 { 1000 + number * 3 + at } else { at });
        assert!(!noticed((0..500).flat_map(row)));
    }
}
