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
