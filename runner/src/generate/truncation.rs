//! Truncation of prompts: which tokens are dropped if they do not all fit into the context.

use crate::picture_rows::{begin_of_picture, end_of_cut_picture};

/// Drops tokens after the first `keep` if necessary, so that at least one more token fits.
pub(super) fn fit(tokens: Vec<u32>, keep: usize, context: usize) -> Vec<u32> {
    if tokens.len() < context {
        return tokens;
    }
    // Half of the space behind the kept tokens stays free; otherwise a long conversation would be
    // cut again at every token.
    let keep = keep.min(context / 2);
    let tail = ((context - keep) / 2).max(1);
    // A picture stays whole or goes.
    let (keep, rest) = (begin_of_picture(&tokens, keep), end_of_cut_picture(&tokens, tokens.len() - tail));
    [&tokens[..keep], &tokens[rest..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture_rows::FIRST_ROW;

    #[test]
    fn makes_room() {
        assert_eq!(fit(vec![1, 2, 3], 0, 4), [1, 2, 3]);
        assert_eq!(fit((0..100).collect(), 2, 10), [0, 1, 96, 97, 98, 99]);
        assert_eq!(fit((0..100).collect(), 200, 10), [0, 1, 2, 3, 4, 98, 99]);
        assert_eq!(fit(vec![1], 0, 1), [1]);
        let picture = |rows: u32| FIRST_ROW..FIRST_ROW + rows;
        let tokens: Vec<u32> = [1, 2].into_iter().chain(picture(8)).chain([3]).collect();
        assert_eq!(fit(tokens.clone(), 0, 10), [3], "the rest of a picture goes");
        assert_eq!(fit(tokens, 5, 10), [1, 2, 3], "the beginning, too");
    }
}
