//! Progress bars: one line of the terminal, with the transfer rate of the last seconds.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use content::text::size;
use indicatif::style::ProgressTracker;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// Time span of the transfer rate.
const WINDOW: Duration = Duration::from_secs(5);
/// Minimum time before a rate is shown.
const SHORTEST: Duration = Duration::from_millis(500);

/// Creates a bar for bytes. Its message describes the current step.
pub(super) fn bytes() -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {bytes}/{total_bytes}{pace}")?;
    let bar = ProgressBar::new(0);
    bar.set_style(style.with_key("pace", Pace::default()).progress_chars("=> "));
    Ok(bar)
}

/// Sets the progress. Sets total and position together, because each alone would look like
/// progress.
pub(super) fn advance(bar: &ProgressBar, message: String, total: u64, completed: u64) {
    bar.set_message(message);
    bar.update(|state| {
        state.set_len(total);
        state.set_pos(completed);
    });
}

/// The transfer rate over the last seconds, and the remaining time at that rate. Bytes before the
/// first reading, as in a resumed transfer, do not count.
#[derive(Clone, Debug, Default)]
struct Pace(VecDeque<(Instant, u64)>);

impl Pace {
    fn read(&mut self, now: Instant, position: u64) {
        self.0.push_back((now, position));
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            self.0.pop_front();
        }
    }

    /// Returns the rate in bytes per second; `None` until there is enough data.
    fn rate(&self) -> Option<u64> {
        let ((begin, first), (end, last)) = (self.0.front()?, self.0.back()?);
        let elapsed = end.duration_since(*begin);
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        (elapsed >= SHORTEST && last > first).then(|| (last - first).saturating_mul(1000) / millis)
    }
}

impl ProgressTracker for Pace {
    fn clone_box(&self) -> Box<dyn ProgressTracker> {
        Box::new(self.clone())
    }

    fn tick(&mut self, state: &ProgressState, now: Instant) {
        if state.len().is_some_and(|total| total > 0) {
            self.read(now, state.pos());
        }
    }

    fn reset(&mut self, _: &ProgressState, _: Instant) {
        self.0.clear();
    }

    fn write(&self, state: &ProgressState, out: &mut dyn Write) {
        let Some(rate) = self.rate() else { return };
        let rest = state.len().unwrap_or(0).saturating_sub(state.pos());
        let left = Duration::from_secs(rest / rate.max(1));
        // A failed write only omits the rate.
        let _ = write!(out, " {}/s {:#}", size(rate), HumanDuration(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        const MIB: u64 = 1 << 20;
        let begin = Instant::now();
        let rate = |readings: &[(u64, u64)]| {
            let mut pace = Pace::default();
            for (millis, mebibytes) in readings {
                pace.read(begin + Duration::from_millis(*millis), mebibytes * MIB);
            }
            pace.rate().map(|rate| rate as f64 / MIB as f64)
        };
        assert_eq!(rate(&[(0, 60)]), None);
        assert_eq!(rate(&[(0, 60), (100, 61)]), None, "too early");
        // A transfer that resumes at 60 MiB.
        assert_eq!(rate(&[(0, 60), (1000, 63), (2000, 66)]), Some(3.0));
        let slower = [(0, 0), (1000, 100), (2000, 101), (7000, 106), (8000, 107)];
        assert_eq!(rate(&slower), Some(1.0), "what was fast is over");
    }
}
