//! The pause before a failing model is loaded again.

use std::time::Duration;

use super::event::Moment;

/// The longest pause between two attempts.
const LONGEST: Duration = Duration::from_secs(30);

/// The failures of a model's runners since the last successful request.
#[derive(Clone, Debug)]
pub(super) struct BackOff {
    failures: u32,
    /// No runner is started before this moment.
    pub(super) until: Moment,
    /// Why a load failed; `None` if a loaded runner ended.
    pub(super) load: Option<String>,
}

impl BackOff {
    /// Returns the state after another failure at `now`. The pauses are 0, 1, 2, 4, … 30 s.
    pub(super) fn after(earlier: Option<&Self>, now: Moment, load: Option<String>) -> Self {
        let failures = earlier.map_or(0, |earlier| earlier.failures).saturating_add(1);
        let pause = match failures {
            1 => Duration::ZERO,
            // 2^5 s exceeds the longest pause.
            more => Duration::from_secs(1 << (more - 2).min(5)).min(LONGEST),
        };
        Self { failures, until: now.saturating_add(pause), load }
    }

    /// Returns the number of failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut last: Option<BackOff> = None;
        let now = Duration::from_secs(7);
        for expect in [0, 1, 2, 4, 8, 16, 30, 30, 30] {
            let next = BackOff::after(last.as_ref(), now, None);
            assert_eq!(next.until, now + Duration::from_secs(expect), "after {} failures", next.failures());
            last = Some(next);
        }
    }
}
