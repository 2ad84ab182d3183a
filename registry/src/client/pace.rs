//! The rate limit and the priority of a transfer, and the rate limit that all transfers share.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::limiter::Limiter;

/// How long a transfer counts as active after its last bytes. Transfers of a lower priority wait
/// while it does.
const ACTIVE: Duration = Duration::from_secs(2);
/// Bytes that a transfer takes of the shared limit at a time. Another one with a higher priority
/// waits for no more than that of each connection.
const SLICE: usize = 64 << 10;
/// Time between two checks of whether transfers of a higher priority are active.
const CHECK: Duration = Duration::from_millis(100);

/// How urgent a transfer is. While a transfer is active, transfers of a lower priority wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// After all others.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Before all others.
    High,
}

impl Urgency {
    const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];
}

/// The rate limit that all transfers of a process share. Clones are the same limit.
#[derive(Clone, Debug)]
pub struct Bandwidth(Arc<BandwidthState>);

#[derive(Debug)]
struct BandwidthState {
    limiter: Limiter,
    /// The activity of transfers of each urgency, from the lowest to the highest.
    activity: Mutex<[Activity; Urgency::ALL.len()]>,
}

/// The activity of transfers.
#[derive(Clone, Copy, Debug, Default)]
struct Activity {
    /// Pieces that have arrived and wait for a limit.
    waiting: usize,
    /// When a piece last passed.
    last: Option<Instant>,
}

/// A piece that waits for a limit.
struct WaitingPiece<'a> {
    shared: &'a Bandwidth,
    urgency: Urgency,
}

impl Drop for WaitingPiece<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        self.shared.note(self.urgency, |activity| {
            activity.waiting -= 1;
            activity.last = Some(now);
        });
    }
}

impl Default for Bandwidth {
    fn default() -> Self {
        let limiter = Limiter::new(None, Instant::now());
        Self(Arc::new(BandwidthState { limiter, activity: Mutex::default() }))
    }
}

impl Bandwidth {
    /// Sets the limit in bytes per second, in both directions together; `None` removes it.
    pub fn set_limit(&self, bytes_per_second: Option<u64>) {
        self.0.limiter.set(bytes_per_second);
    }

    /// The limit in bytes per second; `None` if there is none.
    pub fn limit(&self) -> Option<u64> {
        self.0.limiter.limit()
    }

    fn is_active_above(&self, urgency: Urgency, now: Instant) -> bool {
        let activity = self.0.activity.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < ACTIVE;
        let mut above = activity.iter().skip(urgency as usize + 1);
        above.any(|activity| activity.waiting > 0 || activity.last.is_some_and(is_recent))
    }

    fn note(&self, urgency: Urgency, change: impl FnOnce(&mut Activity)) {
        change(&mut self.0.activity.lock().unwrap_or_else(PoisonError::into_inner)[urgency as usize]);
    }

    fn wait(&self, urgency: Urgency) -> WaitingPiece<'_> {
        self.note(urgency, |activity| activity.waiting += 1);
        WaitingPiece { shared: self, urgency }
    }
}

/// The rate limit and the urgency of one transfer, within the shared limit. Both can be changed
/// while it runs. Clones belong to the same transfer.
#[derive(Clone, Debug)]
pub struct Pace(Arc<PaceState>);

#[derive(Debug)]
struct PaceState {
    limiter: Limiter,
    urgency: AtomicU8,
    /// Whether it waits for others of a higher urgency, and makes others wait.
    is_ordered: bool,
    shared: Bandwidth,
}

impl Pace {
    /// A transfer of normal urgency without a limit of its own.
    pub fn new(shared: &Bandwidth) -> Self {
        Self::with_order(shared, true)
    }

    /// Requests that only share the limit: they neither wait for transfers of a higher urgency nor
    /// make others wait.
    pub fn without_order(shared: &Bandwidth) -> Self {
        Self::with_order(shared, false)
    }

    fn with_order(shared: &Bandwidth, is_ordered: bool) -> Self {
        let (limiter, urgency) = (Limiter::new(None, Instant::now()), AtomicU8::new(Urgency::default() as u8));
        Self(Arc::new(PaceState { limiter, urgency, is_ordered, shared: shared.clone() }))
    }

    /// Sets the limit in bytes per second, in both directions together; `None` removes it.
    pub fn set_limit(&self, bytes_per_second: Option<u64>) {
        self.0.limiter.set(bytes_per_second);
    }

    /// The limit in bytes per second; `None` if the transfer has none of its own.
    pub fn limit(&self) -> Option<u64> {
        self.0.limiter.limit()
    }

    /// Sets the urgency.
    pub fn set_urgency(&self, urgency: Urgency) {
        self.0.urgency.store(urgency as u8, Ordering::Relaxed);
    }

    /// The urgency.
    pub fn urgency(&self) -> Urgency {
        Urgency::ALL[usize::from(self.0.urgency.load(Ordering::Relaxed)).min(Urgency::ALL.len() - 1)]
    }

    /// Waits while transfers of a higher urgency are active.
    pub async fn turn(&self) {
        while self.0.is_ordered && self.0.shared.is_active_above(self.urgency(), Instant::now()) {
            tokio::time::sleep(CHECK).await;
        }
    }

    /// Waits until `bytes` may be transferred.
    pub async fn take(&self, bytes: usize) {
        let shared = &self.0.shared;
        let _waiting = self.0.is_ordered.then(|| shared.wait(self.urgency()));
        self.0.limiter.take(bytes).await;
        let mut left = bytes;
        while left > 0 {
            let slice = left.min(SLICE);
            self.turn().await;
            shared.0.limiter.take(slice).await;
            left -= slice;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_active_transfers_of_a_higher_urgency_go_first() {
        let (shared, start) = (Bandwidth::default(), Instant::now());
        shared.note(Urgency::Normal, |activity| activity.last = Some(start));
        assert!(shared.is_active_above(Urgency::Low, start));
        assert!(!shared.is_active_above(Urgency::Normal, start), "equals share");
        assert!(!shared.is_active_above(Urgency::High, start));
        let later = start + 2 * ACTIVE;
        assert!(!shared.is_active_above(Urgency::Low, later), "it is not active any more");
        let waiting = shared.wait(Urgency::High);
        assert!(shared.is_active_above(Urgency::Normal, later), "it waits for a limit");
        drop(waiting);
    }

    #[test]
    fn settings_of_a_transfer_are_its_own() {
        let shared = Bandwidth::default();
        let (one, other) = (Pace::new(&shared), Pace::new(&shared));
        one.set_limit(Some(5));
        one.set_urgency(Urgency::High);
        assert_eq!((one.clone().limit(), one.clone().urgency()), (Some(5), Urgency::High));
        assert_eq!((other.limit(), other.urgency(), shared.limit()), (None, Urgency::Normal, None));
    }
}
