//! Retries: which requests are sent again, and when.

use std::time::{Duration, Instant};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use super::limits::HostLimits;

/// Whether a failed request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// It would fail in the same way.
    Never,
    /// It had no effect, so it may be repeated.
    Harmless,
    /// It may have had its effect. Repeat it only if doing it twice is the same as once.
    IfRepeatable,
}

/// Whether a status means "try again later", and whether the request may have had its effect.
pub(super) fn not_now(status: StatusCode) -> Option<Again> {
    match status {
        StatusCode::TOO_MANY_REQUESTS => Some(Again::Harmless),
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Some(Again::IfRepeatable),
        _ => None,
    }
}

/// The wait that the registry requests. Dates are not supported: registries send seconds, and
/// clocks differ.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Counts attempts and computes the waits between them.
#[derive(Debug)]
pub(super) struct Backoff<'a> {
    limits: &'a HostLimits,
    began: Instant,
    made: u32,
    /// Waits that the registry requested. They do not count towards the time limit.
    asked_for: Duration,
}

impl<'a> Backoff<'a> {
    pub(super) fn new(limits: &'a HostLimits, now: Instant) -> Self {
        Self { limits, began: now, made: 0, asked_for: Duration::ZERO }
    }

    /// The wait after a failed attempt; `None` after the last one. `fraction` is random between 0
    /// and 1, so that clients that failed together do not retry together.
    pub(super) fn next(&mut self, now: Instant, asked: Option<Duration>, fraction: f64) -> Option<Duration> {
        self.made += 1;
        let spent = now.saturating_duration_since(self.began).saturating_sub(self.asked_for);
        if self.made >= self.limits.attempts || spent > self.limits.patience {
            return None;
        }
        let factor = 3_u32.saturating_pow(self.made - 1);
        let ceiling = self.limits.first_wait.saturating_mul(factor).min(self.limits.longest_wait);
        let drawn = ceiling.mul_f64(fraction.clamp(0.0, 1.0));
        let Some(asked) = asked else { return Some(drawn) };
        let wait = asked.min(self.limits.longest_asked).max(drawn);
        self.asked_for += wait;
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_longer_and_longer_and_gives_up() {
        let (limits, start) = (HostLimits::default(), Instant::now());
        let mut backoff = Backoff::new(&limits, start);
        let mut waits = Vec::new();
        while let Some(wait) = backoff.next(start, None, 1.0) {
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [200, 600, 1800, 5000]);
        let mut backoff = Backoff::new(&limits, start);
        assert_eq!(backoff.next(start, None, 0.0), Some(Duration::ZERO));
        assert_eq!(backoff.next(start + Duration::from_secs(31), None, 0.0), None, "the time is over");
    }

    #[test]
    fn waits_as_long_as_it_is_asked_to_within_reason() {
        let (limits, start) = (HostLimits::default(), Instant::now());
        let mut backoff = Backoff::new(&limits, start);
        assert_eq!(backoff.next(start, Some(Duration::from_secs(3)), 0.5), Some(Duration::from_secs(3)));
        assert_eq!(backoff.next(start, Some(Duration::MAX), 0.5), Some(Duration::from_mins(1)));
        let later = start + Duration::from_secs(70);
        assert!(backoff.next(later, None, 0.5).is_some(), "what was asked for does not count");
    }

    #[test]
    fn reads_retry_after() {
        for (text, expect) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("-1", None),
            ("99999999999999999999999", None),
            ("Wed, 21 Oct 2015 07:28:00 GMT", None),
            ("1.5", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().expect("a header"));
            assert_eq!(retry_after(&headers), expect.map(Duration::from_secs), "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
