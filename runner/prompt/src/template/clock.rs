//! The time that templates see: the client's local time with its offset from UTC.

use jiff::fmt::strtime::BrokenDownTime;
use jiff::fmt::temporal::Pieces;
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, Zoned};

/// A point in time with a time zone.
#[derive(Clone, Debug)]
pub(super) struct Clock(Zoned);

impl Clock {
    /// Returns the time in a request (RFC 3339), else this machine's time in UTC.
    pub(super) fn at(said: Option<&str>) -> Self {
        Self(said.and_then(read).unwrap_or_else(|| Timestamp::now().to_zoned(TimeZone::UTC)))
    }

    /// Formats the time like Python's `strftime`.
    pub(super) fn strftime(&self, format: &str) -> Result<String, String> {
        BrokenDownTime::from(&self.0).to_string(format).map_err(|error| format!("strftime_now(\"{format}\"): {error}"))
    }

    /// Returns the date `days` days later, as `2006-01-02`.
    pub(super) fn day(&self, days: i64) -> String {
        let date = self.0.date();
        date.saturating_add(jiff::Span::new().try_days(days).unwrap_or_default()).to_string()
    }
}

fn read(text: &str) -> Option<Zoned> {
    let pieces = Pieces::parse(text).ok()?;
    let offset = pieces.to_numeric_offset().unwrap_or(Offset::UTC);
    offset
        .to_timestamp(pieces.date().to_datetime(pieces.time()?))
        .ok()
        .map(|time| time.to_zoned(TimeZone::fixed(offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_whoever_asks() {
        let clock = Clock::at(Some("2026-02-03T23:04:05+09:00"));
        for (format, expect) in [
            ("%d %B %Y", Some("03 February 2026")),
            ("%Y-%m-%d %H:%M:%S", Some("2026-02-03 23:04:05")),
            ("%-d %b %y, %A %I %p, day %j", Some("3 Feb 26, Tuesday 11 PM, day 034")),
            ("100%%", Some("100%")),
            ("%", None),
        ] {
            assert_eq!(clock.strftime(format).ok().as_deref(), expect, "{format}");
        }
        assert_eq!((clock.day(0), clock.day(-3)), ("2026-02-03".to_owned(), "2026-01-31".to_owned()));
        // An invalid time falls back to the current time.
        assert!(Clock::at(Some("soon")).day(0) >= Clock::at(None).day(-1));
    }
}
