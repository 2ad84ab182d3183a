//! The campaign's output: one line for each fault and lie.

use std::collections::BTreeMap;
use std::time::Duration;

use super::outcome::Outcome;

/// The result of a case.
pub(super) struct Row {
    pub(super) way: &'static str,
    /// The outcome, or the reason of a failure.
    pub(super) result: Result<Outcome, String>,
    pub(super) took: Duration,
}

#[derive(Default)]
struct Line {
    refused: usize,
    recovered: usize,
    left: usize,
    failed: usize,
    longest: Duration,
}

/// Formats the table.
pub(super) fn printed(rows: &[Row]) -> String {
    let mut lines: BTreeMap<&str, Line> = BTreeMap::new();
    for row in rows {
        let line = lines.entry(row.way).or_default();
        match row.result {
            Ok(Outcome::Refused) => line.refused += 1,
            Ok(Outcome::Recovered) => line.recovered += 1,
            Ok(Outcome::Left) => line.left += 1,
            Err(_) => line.failed += 1,
        }
        line.longest = line.longest.max(row.took);
    }
    let head = format!(
        "{:<28} {:>5} {:>8} {:>10} {:>5} {:>7} {:>8}",
        "answered by", "cases", "refused", "recovered", "left", "failed", "longest"
    );
    let one = |(way, line): (&&str, &Line)| {
        let Line { refused, recovered, left, failed, longest } = line;
        let cases = refused + recovered + left + failed;
        format!(
            "{way:<28} {cases:>5} {refused:>8} {recovered:>10} {left:>5} {failed:>7} {:>6.1} s",
            longest.as_secs_f64()
        )
    };
    [head].into_iter().chain(lines.iter().map(one)).collect::<Vec<_>>().join("\n")
}
