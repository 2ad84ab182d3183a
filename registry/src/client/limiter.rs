//! A rate limit in bytes per second, which can be changed at any time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A token bucket that may go into debt. A caller that takes more than is available waits until the
/// debt is paid; later callers wait for their own debt on top. So a piece of any size passes, and
/// the rate holds over time.
#[derive(Debug)]
pub(super) struct Limiter(Mutex<LimiterState>);

#[derive(Debug)]
struct LimiterState {
    /// `None` if there is no limit.
    bytes_per_second: Option<u64>,
    /// Bytes that all callers have taken.
    taken: f64,
    /// Bytes that the rate has allowed. Less than `taken` while there is debt; more by the capacity
    /// of the bucket at most.
    allowed: f64,
    at: Instant,
}

impl Limiter {
    /// The capacity of the bucket, in seconds of the rate.
    const BURST: f64 = 0.25;
    /// Longest time until a waiting caller notices a changed rate.
    const LONGEST_SLEEP: Duration = Duration::from_millis(200);

    pub(super) fn new(bytes_per_second: Option<u64>, now: Instant) -> Self {
        let allowed = bytes_per_second.map_or(0.0, rate) * Self::BURST;
        Self(Mutex::new(LimiterState { bytes_per_second, taken: 0.0, allowed, at: now }))
    }

    /// Changes the rate; callers that wait continue at the new rate.
    pub(super) fn set(&self, bytes_per_second: Option<u64>) {
        let mut state = self.state();
        state.earn(Instant::now());
        state.bytes_per_second = bytes_per_second;
    }

    /// The rate in bytes per second; `None` if there is no limit.
    pub(super) fn limit(&self) -> Option<u64> {
        self.state().bytes_per_second
    }

    /// Waits until `bytes` may be transferred.
    pub(super) async fn take(&self, bytes: usize) {
        let ticket = self.reserve(bytes, Instant::now());
        loop {
            let wait = self.wait(ticket, Instant::now());
            if wait.is_zero() {
                return;
            }
            tokio::time::sleep(wait.min(Self::LONGEST_SLEEP)).await;
        }
    }

    /// Takes bytes; returns the number that must be allowed before they may be transferred.
    fn reserve(&self, bytes: usize, now: Instant) -> f64 {
        let mut state = self.state();
        state.earn(now);
        state.taken += bytes as f64;
        state.taken
    }

    /// The time until the rate has allowed `ticket` bytes.
    fn wait(&self, ticket: f64, now: Instant) -> Duration {
        let mut state = self.state();
        state.earn(now);
        let Some(rate) = state.bytes_per_second.map(rate) else { return Duration::ZERO };
        let debt = (ticket - state.allowed).max(0.0);
        Duration::try_from_secs_f64(debt / rate).unwrap_or(Duration::MAX)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, LimiterState> {
        // The numbers are always valid, so a poisoned lock is safe.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimiterState {
    /// Adds the bytes that the rate allows for the time since the last call.
    fn earn(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.allowed = match self.bytes_per_second.map(rate) {
            Some(rate) => (self.allowed + elapsed * rate).min(self.taken + rate * Limiter::BURST),
            None => self.taken,
        };
    }
}

/// The rate as a number that can be divided by.
fn rate(bytes_per_second: u64) -> f64 {
    bytes_per_second.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes bytes and returns the wait.
    fn take(limiter: &Limiter, bytes: usize, now: Instant) -> Duration {
        let ticket = limiter.reserve(bytes, now);
        limiter.wait(ticket, now)
    }

    #[test]
    fn holds_the_rate_over_time() {
        let start = Instant::now();
        let limiter = Limiter::new(Some(1000), start);
        assert_eq!(take(&limiter, 250, start), Duration::ZERO, "a burst passes");
        assert_eq!(take(&limiter, 1000, start), Duration::from_secs(1));
        assert_eq!(take(&limiter, 1000, start), Duration::from_secs(2), "the second waits for the first too");
        let later = start + Duration::from_millis(2250);
        assert_eq!(take(&limiter, 250, later), Duration::ZERO, "debts are paid by time");
        let much_later = start + Duration::from_hours(1);
        assert_eq!(take(&limiter, 1250, much_later), Duration::from_secs(1), "unused time is not saved up");
    }

    #[test]
    fn a_changed_rate_holds_for_callers_that_wait() {
        let start = Instant::now();
        let limiter = Limiter::new(Some(1000), start);
        let ticket = limiter.reserve(10_250, start);
        assert_eq!(limiter.wait(ticket, start), Duration::from_secs(10));
        limiter.0.lock().expect("the lock").bytes_per_second = Some(10_000);
        assert_eq!(limiter.wait(ticket, start), Duration::from_secs(1));
        limiter.0.lock().expect("the lock").bytes_per_second = None;
        assert_eq!(limiter.wait(ticket, start), Duration::ZERO);
        // Bytes without a limit are no debt afterwards.
        assert_eq!(take(&limiter, 1 << 30, start), Duration::ZERO);
        limiter.0.lock().expect("the lock").bytes_per_second = Some(1000);
        assert_eq!(take(&limiter, 500, start), Duration::from_millis(500));
    }
}
