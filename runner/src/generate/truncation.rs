//! Truncation of prompts: which tokens are dropped if they do not all fit into the context.

/// Drops tokens after the first `keep` if necessary, so that at least one more token fits.
pub(super) fn fit(tokens: Vec<u32>, keep: usize, context: usize) -> Vec<u32> {
    if tokens.len() < context {
        return tokens;
    }
    // Half of the space behind the kept tokens stays free; otherwise a long conversation would be
    // cut again at every token.
    let keep = keep.min(context / 2);
    let tail = ((context - keep) / 2).max(1);
    [&tokens[..keep], &tokens[tokens.len() - tail..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_room() {
        assert_eq!(fit(vec![1, 2, 3], 0, 4), [1, 2, 3]);
        assert_eq!(fit((0..100).collect(), 2, 10), [0, 1, 96, 97, 98, 99]);
        assert_eq!(fit((0..100).collect(), 200, 10), [0, 1, 2, 3, 4, 98, 99]);
        assert_eq!(fit(vec![1], 0, 1), [1]);
    }
}
