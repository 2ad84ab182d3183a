//! `LODE_BANDWIDTH`: limits of transfers, by the time of day.

use anyhow::{Context, Result, bail};
use daemon::{BandwidthSchedule, TimeLimit};

use super::variables::first;

/// Reads the limits of transfers.
///
/// # Errors
/// The variable has another form.
pub(super) fn configured() -> Result<BandwidthSchedule> {
    schedule(&first(&["LODE_BANDWIDTH"]).unwrap_or_default()).context("LODE_BANDWIDTH")
}

/// Parses `20MB/s;9-17=5MB/s`: the limit at all times, and limits for parts of the day.
///
/// # Errors
/// The text has another form, or two limits for all times.
fn schedule(text: &str) -> Result<BandwidthSchedule> {
    let mut schedule = BandwidthSchedule::default();
    let mut has_rest = false;
    for item in text.split(';').map(str::trim).filter(|item| !item.is_empty()) {
        match item.split_once('=') {
            Some((time, limit)) => schedule.times.push(time_limit(time.trim(), limit.trim())?),
            None if has_rest => bail!("`{text}` has two limits without a time"),
            None => {
                has_rest = true;
                schedule.otherwise = rate(item)?;
            }
        }
    }
    Ok(schedule)
}

/// Parses a number of bytes per second, such as `10MB/s`; `none` is no limit.
///
/// # Errors
/// The text is no such number.
pub(crate) fn rate(text: &str) -> Result<Option<u64>> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(None);
    }
    let bytes = text.strip_suffix("/s").unwrap_or(text).trim();
    let bytes = crate::size::bytes(bytes).ok();
    bytes.map(Some).with_context(|| format!("`{text}` is not a rate; expected e.g. 10MB/s, 500KiB/s or none"))
}

fn time_limit(time: &str, limit: &str) -> Result<TimeLimit> {
    let bad = || format!("`{time}` is not a part of the day; expected e.g. 9-17 or 22:30-6");
    let (from, to) = time.split_once('-').with_context(bad)?;
    let (from, to) = (minute(from.trim()).with_context(bad)?, minute(to.trim()).with_context(bad)?);
    Ok(TimeLimit { from: from % (24 * 60), to: to % (24 * 60), limit: rate(limit)? })
}

/// Returns the minute of the day of `9` or `22:30`; `24` is the end of the day.
fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':').unwrap_or((text, "0"));
    let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
    (hour <= 24 && minute < 60 && hour * 60 + minute <= 24 * 60).then(|| hour * 60 + minute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_times() {
        let parsed = schedule("20MB/s; 9-17=5MB/s;22:30-6=none").expect("a schedule");
        let times = vec![
            TimeLimit { from: 540, to: 1020, limit: Some(5_000_000) },
            TimeLimit { from: 1350, to: 360, limit: None },
        ];
        assert_eq!(parsed, BandwidthSchedule { otherwise: Some(20_000_000), times });
        assert_eq!(schedule("0-24=1KiB/s").expect("all day").times[0], TimeLimit { from: 0, to: 0, limit: Some(1024) });
        assert_eq!(schedule("").expect("nothing"), BandwidthSchedule::default());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["fast", "0", "1MB/s;2MB/s", "9=1MB/s", "9-25=1MB/s", "9:60-10=1MB/s", "9-17=", "-5MB/s", "65535-1=1"]
        {
            schedule(text).expect_err(text);
        }
    }
}
