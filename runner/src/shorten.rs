//! Shortening what does not fit into a context.

/// Cuts tokens to so many, of which the last `end` stay, as far as there is room: they end every text. Says how many were dropped.
pub(crate) fn shorten(tokens: &mut Vec<u32>, most: usize, end: usize) -> usize {
    let dropped = tokens.len().saturating_sub(most);
    if dropped > 0 {
        let end = end.min(most);
        tokens.drain(most - end..tokens.len() - end);
    }
    dropped
}
