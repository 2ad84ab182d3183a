//! Resource use of a daemon: samples of its process and its folders, and the statistics of a soak
//! test.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::requests::{Kind, Slowest};
use crate::server::Server;

/// The maximum number of rows in a table of samples.
const ROWS: usize = 30;

/// The daemon's resource use at a moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Time since the first sample.
    at: Duration,
    /// Resident memory of the daemon in KiB, without its runners.
    resident: u64,
    descriptors: usize,
    threads: u64,
    /// Child processes of the daemon, including zombies.
    runners: usize,
    /// Number of entries in `ingest/`.
    ingests: usize,
    /// Number of entries in `tmp/`.
    temporary: usize,
    /// The longest requests that ended since the previous sample.
    slowest: Slowest,
}

impl Sample {
    /// Takes a sample of a daemon.
    pub(super) fn take(server: &Server, at: Duration, slowest: Slowest) -> Self {
        let (pid, home) = (server.pid(), server.home());
        Self {
            at,
            resident: status(pid, "VmRSS:"),
            descriptors: descriptors(pid),
            threads: status(pid, "Threads:"),
            runners: children(pid),
            ingests: count(&home.join("ingest")),
            temporary: count(&home.join("tmp")),
            slowest,
        }
    }
}

/// Returns the number of a process's open file descriptors.
pub(super) fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("the daemon runs").count()
}

/// Returns the number in a line of a process's status.
fn status(pid: u32, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon runs");
    let found = status.lines().find_map(|text| text.strip_prefix(line));
    let found = found.unwrap_or_else(|| panic!("the daemon has ended: its status has no `{line}`"));
    found.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

/// Returns the number of a process's children.
fn children(parent: u32) -> usize {
    let parent = parent.to_string();
    let is_child = |entry: fs::DirEntry| {
        // Some entries are not processes, and a process may have ended.
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        (rest.split_whitespace().nth(1) == Some(parent.as_str())).then_some(())
    };
    fs::read_dir("/proc").expect("there is /proc").flatten().filter_map(is_child).count()
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

/// Growth of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Slope in the second half, in KiB per hour; `None` if all of its samples have the same time.
    pub(super) slope: Option<f64>,
    /// Growth from the first sample to the last, as a fraction of the first.
    pub(super) whole: f64,
}

/// Returns the growth of resident memory. There must be at least one sample.
pub(super) fn growth(samples: &[Sample]) -> Growth {
    let (first, last) = (samples.first().expect("a sample"), samples.last().expect("a sample"));
    let second_half = samples.iter().filter(|sample| sample.at >= last.at / 2);
    let points: Vec<(f64, f64)> =
        second_half.map(|sample| (sample.at.as_secs_f64() / 3600.0, sample.resident as f64)).collect();
    Growth { slope: slope(&points), whole: last.resident as f64 / first.resident as f64 - 1.0 }
}

/// Returns the slope of the least-squares line; `None` if all x are equal.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
    let covariance: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (variance > 0.0).then(|| covariance / variance)
}

/// Returns the median of sorted times; for an even number, the mean of the two middle ones.
fn median(sorted: &[Duration]) -> Option<Duration> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { (sorted[middle - 1] + upper) / 2 })
}

/// Returns the smallest of the sorted times that at least `percent` of them do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Formats the number of times, their median, 99th percentile and maximum in milliseconds.
pub(super) fn figures(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let (Some(median), Some(late), Some(most)) = (median(&times), percentile(&times, 99), times.last()) else {
        return "none".to_owned();
    };
    let [median, late, most] = [median, late, *most].map(milliseconds);
    format!("{:>8} times, median {median:>9}, p99 {late:>9}, max {most:>9}", times.len())
}

pub(super) fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

/// Returns at most `most` of `count` indices, evenly spread, including the first and the last.
fn places(count: usize, most: usize) -> Vec<usize> {
    if count <= most {
        return (0..count).collect();
    }
    (0..most).map(|row| row * (count - 1) / (most - 1)).collect()
}

/// Returns the samples for the table. Each has the slowest requests since the previous row.
fn rows(samples: &[Sample]) -> Vec<Sample> {
    let mut next = 0;
    let row = |place: usize| {
        let mut shown = samples[place].clone();
        for sample in &samples[next..place] {
            for (longest, time) in shown.slowest.iter_mut().zip(sample.slowest) {
                *longest = time.max(*longest);
            }
        }
        next = place + 1;
        shown
    };
    places(samples.len(), ROWS).into_iter().map(row).collect()
}

/// Formats the samples as a table of at most 30 rows, and the change of memory and file
/// descriptors.
pub(super) fn report(samples: &[Sample]) -> String {
    let mut text = String::from("seconds   RSS KiB   fds threads runners ingests tmp");
    for kind in Kind::ALL {
        let _ = write!(text, " {:>8}", kind.name());
    }
    text.push_str("  (the slowest since the row before, in ms)\n");
    for sample in rows(samples) {
        let Sample { at, resident, descriptors, threads, runners, ingests, temporary, slowest } = sample;
        let seconds = at.as_secs();
        let _ = write!(
            text,
            "{seconds:>7} {resident:>9} {descriptors:>5} {threads:>7} {runners:>7} {ingests:>7} {temporary:>3}"
        );
        for time in slowest {
            let shown = if time.is_zero() { "-".to_owned() } else { milliseconds(time) };
            let _ = write!(text, " {shown:>8}");
        }
        text.push('\n');
    }
    let Growth { slope, whole } = growth(samples);
    let slope = slope.map_or("unknown".to_owned(), |slope| format!("{slope:.0} KiB an hour"));
    let ends = [samples.first(), samples.last()].map(|sample| sample.map_or(0, |sample| sample.descriptors));
    let _ = writeln!(text, "RSS: slope of the second half {slope}, {:+.1} % from first to last", whole * 100.0);
    let _ = write!(text, "descriptors: {} at first, {} at last", ends[0], ends[1]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(all: &[u64]) -> Vec<Duration> {
        all.iter().copied().map(Duration::from_secs).collect()
    }

    fn sample(at: u64, resident: u64) -> Sample {
        let at = Duration::from_secs(at);
        let slowest = Slowest::default();
        Sample { at, resident, descriptors: 9, threads: 1, runners: 0, ingests: 0, temporary: 0, slowest }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&seconds(&[7])), Some(Duration::from_secs(7)));
        assert_eq!(median(&seconds(&[1, 2, 9])), Some(Duration::from_secs(2)));
        assert_eq!(median(&seconds(&[1, 2, 3, 9])), Some(Duration::from_millis(2500)));
    }

    #[test]
    fn percentiles_are_times_that_there_were() {
        let hundred = seconds(&(1..=100).collect::<Vec<_>>());
        for (percent, expect) in [(0, 1), (1, 1), (50, 50), (99, 99), (100, 100)] {
            assert_eq!(percentile(&hundred, percent), Some(Duration::from_secs(expect)), "{percent} %");
        }
        assert_eq!(percentile(&seconds(&[1, 2, 3]), 99), Some(Duration::from_secs(3)));
        assert_eq!(percentile(&seconds(&[1, 2, 3]), 34), Some(Duration::from_secs(2)));
        assert_eq!(percentile(&[], 99), None);
    }

    #[test]
    fn slopes_are_those_of_lines() {
        type Points = [(f64, f64)];
        let cases: [(&Points, Option<f64>); 6] = [
            (&[(0.0, 5.0), (1.0, 7.0), (2.0, 9.0)], Some(2.0)),
            // Symmetric deviations from the line do not change the slope.
            (&[(0.0, 1.0), (1.0, -1.0), (2.0, -1.0), (3.0, 1.0)], Some(0.0)),
            (&[(0.0, 0.0), (1.0, 0.0), (2.0, 3.0)], Some(1.5)),
            (&[(1.0, 1.0), (1.0, 2.0)], None),
            (&[(1.0, 1.0)], None),
            (&[], None),
        ];
        for (points, expect) in cases {
            let found = slope(points);
            let same = found.zip(expect).map_or(found.is_none() && expect.is_none(), |(a, b)| (a - b).abs() < 1e-9);
            assert!(same, "{points:?}: {found:?}, expected {expect:?}");
        }
    }

    #[test]
    fn only_the_second_half_has_the_slope() {
        // Memory grows while caches fill, and then stays constant.
        let grown =
            growth(&[sample(0, 1000), sample(900, 2000), sample(1800, 3000), sample(2700, 3000), sample(3600, 3000)]);
        assert!(grown.slope.is_some_and(|slope| slope.abs() < 1e-6), "{grown:?}");
        assert!((grown.whole - 2.0).abs() < 1e-9, "{grown:?}");
        let leaks = growth(&[sample(0, 1000), sample(1800, 1500), sample(3600, 2000)]);
        assert!(leaks.slope.is_some_and(|slope| (slope - 1000.0).abs() < 1e-6), "{leaks:?}");
    }

    #[test]
    fn tables_keep_both_ends_and_what_was_slowest() {
        let shown = places(361, ROWS);
        assert_eq!((shown.len(), shown[0], shown[ROWS - 1]), (ROWS, 0, 360));
        assert!(shown.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(places(3, ROWS), [0, 1, 2]);
        let mut samples: Vec<Sample> = (0..61).map(|at| sample(at, 1000)).collect();
        samples[1].slowest[0] = Duration::from_secs(7);
        assert_eq!(rows(&samples)[1].slowest[0], Duration::from_secs(7), "the row after has it");
        let table = report(&[sample(0, 1000), sample(10, 1100)]);
        assert_eq!(table.lines().count(), 5, "{table}");
        assert!(table.contains("+10.0 %"), "{table}");
    }
}
