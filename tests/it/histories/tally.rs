//! Statistics of one or several seeds.

use std::collections::BTreeMap;
use std::fmt;

use super::kind::Kind;
use super::request::Answer;

/// The outcomes of one kind of operation.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    acknowledged: u64,
    refused: u64,
    unknown: u64,
}

/// Operations by kind, and other events.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    counts: BTreeMap<Kind, Counts>,
    /// The reasons of refusals, without digests and numbers, and how often each occurred.
    reasons: BTreeMap<(Kind, String), u64>,
    /// Collections that were postponed because content was being added.
    pub(super) put_off: u64,
    pub(super) kills: u64,
    pub(super) checks: u64,
}

impl Tally {
    /// Counts an operation that has ended.
    pub(super) fn count(&mut self, kind: Kind, answer: &Answer) {
        let counts = self.counts.entry(kind).or_default();
        match answer {
            Answer::Done(_) => counts.acknowledged += 1,
            Answer::Lost(_) => counts.unknown += 1,
            Answer::Refused { status, text } => {
                counts.refused += 1;
                *self.reasons.entry((kind, format!("{status} {}", without_numbers(text)))).or_default() += 1;
            }
        }
    }

    /// Returns the number of operations that have ended.
    pub(super) fn operations(&self) -> u64 {
        self.counts.values().map(|counts| counts.acknowledged + counts.refused + counts.unknown).sum()
    }

    /// Adds the statistics of another seed.
    pub(super) fn add(&mut self, other: &Self) {
        for (kind, more) in &other.counts {
            let counts = self.counts.entry(*kind).or_default();
            counts.acknowledged += more.acknowledged;
            counts.refused += more.refused;
            counts.unknown += more.unknown;
        }
        for (reason, more) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += more;
        }
        self.put_off += other.put_off;
        self.kills += other.kills;
        self.checks += other.checks;
    }

    /// Formats everything as a table.
    pub(super) fn table(&self) -> String {
        let mut lines = vec![format!("{:<10}{:>14}{:>10}{:>10}", "", "acknowledged", "refused", "unknown")];
        for (kind, counts) in &self.counts {
            let Counts { acknowledged, refused, unknown } = counts;
            lines.push(format!("{:<10}{acknowledged:>14}{refused:>10}{unknown:>10}", kind.name()));
        }
        let Self { put_off, kills, checks, .. } = self;
        lines.push(format!(
            "{} operations, {kills} kills, {checks} checks, {put_off} collections put off",
            self.operations()
        ));
        let reason = |((kind, reason), count): (&(Kind, String), &u64)| {
            format!("refused {count} times: {}: {reason}", kind.name())
        };
        lines.extend(self.reasons.iter().map(reason));
        lines.join("\n")
    }
}

impl fmt::Display for Tally {
    /// Formats one line with the acknowledged, refused and unknown operations of each kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} operations (acknowledged/refused/unknown:", self.operations())?;
        for (kind, Counts { acknowledged, refused, unknown }) in &self.counts {
            write!(f, " {} {acknowledged}/{refused}/{unknown}", kind.name())?;
        }
        let Self { put_off, kills, checks, .. } = self;
        write!(f, "), {kills} kills, {checks} checks, {put_off} collections put off")
    }
}

/// Replaces every word that contains a digit with `#`, so that similar messages become equal, and
/// truncates the message to a line.
fn without_numbers(text: &str) -> String {
    let has_digit = |word: &str| word.chars().any(|c| c.is_ascii_digit());
    let words: Vec<&str> = text.split_whitespace().map(|word| if has_digit(word) { "#" } else { word }).collect();
    words.join(" ").chars().take(160).collect()
}
