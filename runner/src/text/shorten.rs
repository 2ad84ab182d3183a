//! Truncation of tokens that do not fit into a context.

/// Truncates tokens to `most`. Of these, the last `end` stay as far as there is room, because they
/// end every text. Returns how many tokens were dropped.
pub(crate) fn shorten(tokens: &mut Vec<u32>, most: usize, end: usize) -> usize {
    let dropped = tokens.len().saturating_sub(most);
    if dropped > 0 {
        let end = end.min(most);
        tokens.drain(most - end..tokens.len() - end);
    }
    dropped
}
