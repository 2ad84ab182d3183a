//! The order in which the sources of a repository are asked for blobs: the fastest mirror first,
//! then the registry itself, then mirrors that have failed.

use std::cmp::Reverse;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Host;

/// Bytes after which a source counts as measured: less says more about its latency than its rate.
const MEASURED: f64 = (256 << 10) as f64;
/// Number of blobs that a source gets at a time before it is measured.
const TRIALS: usize = 4;
/// Bytes after which older measurements count half.
const MEMORY: f64 = (64 << 20) as f64;

/// Measurements of each source. They belong to one transfer.
#[derive(Debug)]
pub(super) struct SourceRanking(Mutex<Vec<SourceRecord>>);

/// Measurements of a source.
#[derive(Clone, Copy, Debug, Default)]
struct SourceRecord {
    /// Whether it is a mirror.
    is_mirror: bool,
    /// Blobs that it is sending.
    active: usize,
    /// Failures since its last success.
    failures: usize,
    bytes: f64,
    seconds: f64,
}

/// How a source has answered a request for a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceEnd {
    Complete,
    /// It does not have the blob, but may have others.
    Missing,
    Failed,
}

impl SourceRanking {
    pub(super) fn new(sources: &[Host]) -> Self {
        let record = |host: &Host| SourceRecord { is_mirror: host.is_mirror(), ..SourceRecord::default() };
        Self(Mutex::new(sources.iter().map(record).collect()))
    }

    /// The sources by their numbers, the best one first. A mirror that is not measured yet comes
    /// before the others for a few blobs.
    pub(super) fn order(&self) -> Vec<usize> {
        let records = self.records();
        let mut order: Vec<usize> = (0..records.len()).collect();
        // Stable: equal sources keep the configured order.
        order.sort_by_key(|number| records[*number].rank());
        order
    }

    /// Notes that a source begins to send a blob.
    pub(super) fn begin(&self, number: usize) {
        self.records()[number].active += 1;
    }

    /// Notes that a source has sent so many bytes in the time of a request.
    pub(super) fn measure(&self, number: usize, bytes: u64, elapsed: Duration) {
        let record = &mut self.records()[number];
        record.bytes += bytes as f64;
        record.seconds += elapsed.as_secs_f64();
        if record.bytes > MEMORY {
            record.bytes /= 2.0;
            record.seconds /= 2.0;
        }
    }

    /// Notes how a source has answered.
    pub(super) fn end(&self, number: usize, end: SourceEnd) {
        let record = &mut self.records()[number];
        record.active = record.active.saturating_sub(1);
        record.failures = match end {
            SourceEnd::Complete => 0,
            SourceEnd::Missing => record.failures,
            SourceEnd::Failed => record.failures + 1,
        };
    }

    fn records(&self) -> MutexGuard<'_, Vec<SourceRecord>> {
        // Each number is valid by itself, so a poisoned lock is safe.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SourceRecord {
    /// The smallest rank is the best: failures, registry or mirror, measured or not, busy, rate.
    /// The bits of numbers that are not negative have the order of the numbers.
    fn rank(&self) -> (usize, bool, bool, usize, Reverse<u64>) {
        let is_measured = self.bytes >= MEASURED;
        let rate = if is_measured { self.bytes / self.seconds.max(1e-9) } else { 0.0 };
        let is_tried = is_measured || self.active >= TRIALS;
        (self.failures, !self.is_mirror, is_tried, if is_measured { 0 } else { self.active }, Reverse(rate.to_bits()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A registry after three mirrors.
    fn ranking() -> SourceRanking {
        let record = |is_mirror| SourceRecord { is_mirror, ..SourceRecord::default() };
        SourceRanking(Mutex::new([true, true, true, false].map(record).into()))
    }

    const SECOND: Duration = Duration::from_secs(1);

    impl SourceRanking {
        fn sent(&self, number: usize, bytes: u64, end: SourceEnd) {
            self.measure(number, bytes, SECOND);
            self.end(number, end);
        }
    }

    #[test]
    fn each_mirror_is_measured_and_then_the_fastest_preferred() {
        let ranking = ranking();
        assert_eq!(ranking.order(), [0, 1, 2, 3], "the configured order");
        for expect in [0, 1, 2, 0, 1, 2] {
            assert_eq!(ranking.order()[0], expect, "the mirrors that are not measured yet take turns");
            ranking.begin(expect);
        }
        for (number, mebibytes) in [(0, 1), (1, 3), (2, 2)] {
            ranking.sent(number, mebibytes << 20, SourceEnd::Complete);
        }
        assert_eq!(ranking.order(), [1, 2, 0, 3]);
        ranking.sent(1, 1000, SourceEnd::Missing);
        assert_eq!(ranking.order()[0], 2, "its rate has fallen");
        ranking.sent(2, 1000, SourceEnd::Failed);
        assert_eq!(ranking.order(), [1, 0, 3, 2], "a mirror that fails comes last");
        ranking.sent(2, 8 << 20, SourceEnd::Complete);
        assert_eq!(ranking.order()[0], 2);
    }

    #[test]
    fn a_mirror_that_never_sends_anything_stays_last() {
        let ranking = ranking();
        for number in 0..3 {
            ranking.begin(number);
            ranking.sent(number, 0, SourceEnd::Failed);
        }
        assert_eq!(ranking.order()[0], 3, "the registry itself");
    }

    #[test]
    fn old_measurements_fade() {
        let ranking = ranking();
        for _ in 0..20 {
            ranking.sent(0, 100 << 20, SourceEnd::Complete);
            ranking.sent(1, 50 << 20, SourceEnd::Complete);
        }
        assert_eq!(ranking.order()[..2], [2, 0]);
        for _ in 0..8 {
            ranking.sent(0, 10 << 20, SourceEnd::Complete);
        }
        assert_eq!(ranking.order()[..2], [2, 1]);
    }
}
