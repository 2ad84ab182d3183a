//! A rate limit in bytes per second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A token bucket that may go into debt. A caller that takes more than is available waits until the
/// debt would be paid; later callers wait for their own debt on top. So a piece of any size passes,
/// and the rate holds over time.
#[derive(Debug)]
pub(super) struct Limiter {
    bytes_per_second: f64,
    state: Mutex<LimiterState>,
}

#[derive(Debug)]
struct LimiterState {
    /// Negative while in debt.
    available: f64,
    at: Instant,
}

impl Limiter {
    /// The capacity of the bucket, in seconds of the rate.
    const BURST: f64 = 0.25;

    pub(super) fn new(bytes_per_second: u64, now: Instant) -> Self {
        let bytes_per_second = bytes_per_second.max(1) as f64;
        let state = LimiterState { available: bytes_per_second * Self::BURST, at: now };
        Self { bytes_per_second, state: Mutex::new(state) }
    }

    /// Waits until `bytes` may be transferred.
    pub(super) async fn take(&self, bytes: usize) {
        let wait = self.reserve(bytes, Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    fn reserve(&self, bytes: usize, now: Instant) -> Duration {
        // Both numbers are always valid, so a poisoned lock is safe.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let earned = now.saturating_duration_since(state.at).as_secs_f64() * self.bytes_per_second;
        let ceiling = self.bytes_per_second * Self::BURST;
        state.available = (state.available + earned).min(ceiling) - bytes as f64;
        state.at = state.at.max(now);
        let debt = (-state.available).max(0.0);
        Duration::try_from_secs_f64(debt / self.bytes_per_second).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_rate_over_time() {
        let start = Instant::now();
        let limiter = Limiter::new(1000, start);
        assert_eq!(limiter.reserve(250, start), Duration::ZERO, "a burst passes");
        assert_eq!(limiter.reserve(1000, start), Duration::from_secs(1));
        assert_eq!(limiter.reserve(1000, start), Duration::from_secs(2), "the second waits for the first too");
        let later = start + Duration::from_secs(3);
        assert_eq!(limiter.reserve(250, later), Duration::ZERO, "debts are paid by time");
        let much_later = start + Duration::from_hours(1);
        assert_eq!(limiter.reserve(1250, much_later), Duration::from_secs(1), "unused time is not saved up");
    }
}
