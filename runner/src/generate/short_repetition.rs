//! Detects a short repetition: the same few tokens, at most 64, again and again.

/// Longest cycle that is detected, in tokens.
const MAX_PERIOD: usize = 64;
/// Least number of times that a cycle must occur.
const MIN_TURNS: usize = 4;

/// For every length of a cycle, the number of last tokens that match it.
#[derive(Debug)]
pub(super) struct ShortRepetition {
    limit: usize,
    /// The last tokens, each at its position modulo the longest cycle.
    recent: [u32; MAX_PERIOD],
    count: usize,
    /// For a period of one more than the index: how many of the last tokens equal the token one
    /// period before.
    runs: [usize; MAX_PERIOD],
}

impl ShortRepetition {
    /// Detects repetitions of at least `limit` tokens; 0 turns detection off.
    pub(super) fn new(limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { limit, recent: [0; MAX_PERIOD], count: 0, runs: [0; MAX_PERIOD] }
    }

    /// Adds a token; returns whether the last tokens are a cycle for at least as long as the limit.
    pub(super) fn push(&mut self, token: u32) -> bool {
        if self.limit == 0 {
            return false;
        }
        let mut lost = false;
        for (index, run) in self.runs.iter_mut().enumerate().take(self.count) {
            let period = index + 1;
            let before = self.recent[(self.count - period) % MAX_PERIOD];
            *run = if before == token { *run + 1 } else { 0 };
            let length = *run + period;
            lost |= length >= self.limit && length >= MIN_TURNS * period;
        }
        self.recent[self.count % MAX_PERIOD] = token;
        self.count += 1;
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns after how many tokens a cycle is detected.
    fn noticed(limit: u64, tokens: impl Iterator<Item = u32>) -> Option<usize> {
        let mut cycle = ShortRepetition::new(limit);
        tokens.map(|token| cycle.push(token)).position(|lost| lost).map(|at| at + 1)
    }

    #[test]
    fn cycles_are_noticed_when_they_are_long_enough() {
        let repeated = |pattern: &'static [u32]| pattern.iter().copied().cycle().take(1000);
        assert_eq!(noticed(20, repeated(&[7])), Some(20));
        assert_eq!(noticed(20, [1, 2, 3].into_iter().chain(repeated(&[7, 8]))), Some(23));
        assert_eq!(noticed(4, repeated(&[1, 2, 3])), Some(12), "four times at least");
        let long: Vec<u32> = (0..64).collect();
        assert_eq!(noticed(300, long.iter().copied().cycle().take(1000)), Some(300));
        let longer: Vec<u32> = (0..65).collect();
        assert_eq!(noticed(300, longer.iter().copied().cycle().take(1000)), None);
    }

    #[test]
    fn what_changes_is_no_cycle() {
        assert_eq!(noticed(20, 0..1000), None);
        assert_eq!(noticed(0, std::iter::repeat_n(1, 1000)), None);
        // A table: rows that differ only in a number.
        assert_eq!(noticed(20, (0..200).flat_map(|row| [1, 2, 1000 + row, 3])), None);
        // An interruption resets the count.
        let broken = std::iter::repeat_n(5, 19).chain([6]).chain(std::iter::repeat_n(5, 19));
        assert_eq!(noticed(20, broken), None);
    }
}
