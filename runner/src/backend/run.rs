//! Runs of rows that share their projections, such as the rows of an expert.

use std::ops::Range;

/// Consecutive rows that share their projections.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Index of the projections.
    pub(crate) by: usize,
    pub(crate) rows: Range<usize>,
}

impl Run {
    /// Returns whether the runs are `rows` rows in order, each row once.
    pub(crate) fn are_all(runs: &[Self], rows: usize) -> bool {
        let mut next = 0;
        let follows = |run: &Self| {
            let begin = std::mem::replace(&mut next, run.rows.end);
            run.rows.start == begin && begin <= run.rows.end
        };
        !runs.is_empty() && runs.iter().all(follows) && next == rows
    }
}
