//! Room in the context: which tokens are dropped when they do not all fit.

/// Makes room for at least one token: drops tokens after the first `keep`, as many as it takes.
pub(super) fn fit(tokens: Vec<u32>, keep: usize, context: usize) -> Vec<u32> {
    if tokens.len() < context {
        return tokens;
    }
    // Half of what is not kept stays free, or a long conversation would be cut again at every token.
    let keep = keep.min(context / 2);
    let tail = ((context - keep) / 2).max(1);
    [&tokens[..keep], &tokens[tokens.len() - tail..]].concat()
}

/// What is left of a full context: the first `keep` tokens, at most half of all, and the later half of the others.
pub(super) fn shift(tokens: &[u32], keep: usize) -> Vec<u32> {
    let keep = keep.min(tokens.len() / 2);
    let dropped = (tokens.len() - keep).div_ceil(2);
    [&tokens[..keep], &tokens[keep + dropped..]].concat()
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

    #[test]
    fn drops_the_oldest_that_are_not_kept() {
        let tokens: Vec<u32> = (0..10).collect();
        assert_eq!(shift(&tokens, 2), [0, 1, 6, 7, 8, 9]);
        assert_eq!(shift(&tokens, 0), [5, 6, 7, 8, 9]);
        assert_eq!(shift(&tokens, 99), [0, 1, 2, 3, 4, 8, 9]);
        assert!(shift(&[7], 0).is_empty(), "there is always room for a token");
    }
}
