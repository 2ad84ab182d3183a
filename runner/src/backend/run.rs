//! Runs of rows that are projected alike, as those of an expert are.

use std::ops::Range;

/// Rows that are projected alike.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// By which projections.
    pub(crate) by: usize,
    pub(crate) rows: Range<usize>,
}

impl Run {
    /// Whether runs are so many rows in their order, each once.
    pub(crate) fn are_all(runs: &[Self], rows: usize) -> bool {
        let mut next = 0;
        let follows = |run: &Self| {
            let begin = std::mem::replace(&mut next, run.rows.end);
            run.rows.start == begin && begin <= run.rows.end
        };
        !runs.is_empty() && runs.iter().all(follows) && next == rows
    }
}
