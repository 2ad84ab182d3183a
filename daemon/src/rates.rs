//! The numbers of tokens that were computed in the last minutes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Length of a counting period.
pub(crate) const PERIOD: Duration = Duration::from_secs(5);
/// Number of periods that are kept: ten minutes.
const PERIODS: usize = 120;

/// Numbers of tokens in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Tokens of prompts.
    pub(crate) prompt: u64,
    /// Tokens of answers.
    pub(crate) generated: u64,
}

/// The token rates of the last periods. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates(Arc<Mutex<Periods>>);

#[derive(Debug, Default)]
struct Periods {
    /// When the current period began; `None` before the first count.
    begin: Option<Instant>,
    /// The last element is the current period.
    rates: VecDeque<Rate>,
}

impl Rates {
    /// Counts tokens that were computed now.
    pub(crate) fn add(&self, prompt: u64, generated: u64) {
        self.add_at(Instant::now(), prompt, generated);
    }

    fn add_at(&self, now: Instant, prompt: u64, generated: u64) {
        let mut periods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        periods.go_to(now);
        if let Some(rate) = periods.rates.back_mut() {
            rate.prompt += prompt;
            rate.generated += generated;
        }
    }

    /// Returns the last periods, the oldest first; empty before the first count.
    pub(crate) fn last(&self, now: Instant) -> Vec<Rate> {
        let mut periods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if periods.begin.is_some() {
            periods.go_to(now);
        }
        periods.rates.iter().copied().collect()
    }
}

impl Periods {
    /// Starts all periods up to this moment.
    fn go_to(&mut self, now: Instant) {
        let begin = *self.begin.get_or_insert(now);
        if self.rates.is_empty() {
            self.rates.push_back(Rate::default());
        }
        let passed = now.saturating_duration_since(begin).as_secs() / PERIOD.as_secs();
        for _ in 0..passed.min(PERIODS as u64) {
            self.rates.push_back(Rate::default());
        }
        let surplus = self.rates.len().saturating_sub(PERIODS);
        self.rates.drain(..surplus);
        self.begin = Some(begin + Duration::from_secs(passed * PERIOD.as_secs()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_come_and_go() {
        let (rates, begin) = (Rates::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let generated = |seconds| -> Vec<u64> { rates.last(at(seconds)).iter().map(|rate| rate.generated).collect() };
        assert!(generated(0).is_empty());
        rates.add_at(at(0), 7, 1);
        rates.add_at(at(4), 0, 2);
        rates.add_at(at(5), 0, 4);
        assert_eq!(generated(9), [3, 4]);
        assert_eq!(rates.last(at(9))[0].prompt, 7);
        assert_eq!(generated(21), [3, 4, 0, 0, 0], "nothing was computed since");
        rates.add_at(at(21), 0, 8);
        assert_eq!(generated(24), [3, 4, 0, 0, 8]);
        let later = generated(10_000);
        assert_eq!((later.len(), later.iter().sum::<u64>()), (PERIODS, 0));
    }
}
