//! The limit that all transfers with other servers share, by the time of day.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Zoned;
use registry::client::Bandwidth;

/// Time between two looks at the clock.
const TICK: Duration = Duration::from_secs(10);

/// Limits by the local time of day, in bytes per second. The default is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BandwidthSchedule {
    /// The limit at all other times; `None` is no limit.
    pub otherwise: Option<u64>,
    /// Times of day with another limit. The first one that applies counts.
    pub times: Vec<TimeLimit>,
}

/// The limit for a part of the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit {
    /// The first minute of the day.
    pub from: u16,
    /// The minute of the day at which it ends. If it is not after `from`, it is on the next day.
    pub to: u16,
    /// The limit in bytes per second; `None` is no limit.
    pub limit: Option<u64>,
}

impl BandwidthSchedule {
    /// Returns the limit at a minute of the day.
    fn at(&self, minute: u16) -> Option<u64> {
        let applies = |time: &&TimeLimit| {
            let is_within_a_day = time.from < time.to;
            let (has_begun, is_before_end) = (minute >= time.from, minute < time.to);
            if is_within_a_day { has_begun && is_before_end } else { has_begun || is_before_end }
        };
        self.times.iter().find(applies).map_or(self.otherwise, |time| time.limit)
    }
}

/// The shared limit: by the schedule, or the one that a request has set.
#[derive(Clone, Debug)]
pub(crate) struct SharedLimit {
    bandwidth: Bandwidth,
    schedule: BandwidthSchedule,
    /// The limit that a request has set, until the daemon ends; 0 is no limit.
    requested: Arc<Mutex<Option<u64>>>,
}

impl SharedLimit {
    pub(crate) fn new(bandwidth: &Bandwidth, schedule: &BandwidthSchedule) -> Self {
        let limit = Self { bandwidth: bandwidth.clone(), schedule: schedule.clone(), requested: Arc::default() };
        limit.apply();
        limit
    }

    /// Sets a limit in place of the schedule, in bytes per second; 0 is no limit, `None` returns to
    /// the schedule.
    pub(crate) fn request(&self, limit: Option<u64>) {
        *self.requested.lock().unwrap_or_else(PoisonError::into_inner) = limit;
        self.apply();
    }

    /// The limit that applies now, in bytes per second.
    pub(crate) fn current(&self) -> Option<u64> {
        self.bandwidth.limit()
    }

    /// Follows the schedule; ends with the daemon.
    pub(crate) async fn keep(&self) {
        loop {
            tokio::time::sleep(TICK).await;
            self.apply();
        }
    }

    fn apply(&self) {
        let requested = *self.requested.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Zoned::now();
        let minute = u16::from(now.hour().unsigned_abs()) * 60 + u16::from(now.minute().unsigned_abs());
        let limit = match requested {
            Some(limit) => Some(limit).filter(|limit| *limit > 0),
            None => self.schedule.at(minute),
        };
        if limit != self.bandwidth.limit() {
            self.bandwidth.set_limit(limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_time_that_applies_counts() {
        let at_work = TimeLimit { from: 9 * 60, to: 17 * 60, limit: Some(5) };
        let at_night = TimeLimit { from: 22 * 60, to: 6 * 60, limit: None };
        let schedule = BandwidthSchedule { otherwise: Some(20), times: vec![at_work, at_night] };
        for (minute, limit) in [
            (0, None),
            (6 * 60 - 1, None),
            (6 * 60, Some(20)),
            (9 * 60, Some(5)),
            (17 * 60 - 1, Some(5)),
            (17 * 60, Some(20)),
            (22 * 60, None),
        ] {
            assert_eq!(schedule.at(minute), limit, "minute {minute}");
        }
        let all_day = BandwidthSchedule { otherwise: None, times: vec![TimeLimit { from: 0, to: 0, limit: Some(1) }] };
        assert_eq!((all_day.at(0), all_day.at(1439)), (Some(1), Some(1)));
    }

    #[test]
    fn a_requested_limit_replaces_the_schedule() {
        let bandwidth = Bandwidth::default();
        let limit = SharedLimit::new(&bandwidth, &BandwidthSchedule { otherwise: Some(20), times: Vec::new() });
        assert_eq!(limit.current(), Some(20));
        limit.request(Some(0));
        assert_eq!(bandwidth.limit(), None);
        limit.request(Some(7));
        assert_eq!(bandwidth.limit(), Some(7));
        limit.request(None);
        assert_eq!(bandwidth.limit(), Some(20));
    }
}
