//! The choice of a slot for a prompt.

use crate::cache::common_prefix;

/// A slot that may be chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    /// Tokens in its cache.
    pub(crate) tokens: &'a [u32],
    /// When it was last assigned.
    pub(crate) last_used: u64,
    /// Whether no work runs on it.
    pub(crate) is_free: bool,
}

/// Returns the free slot whose tokens have the longest common prefix with the prompt. A prefix
/// counts only if it is more than half of the slot's tokens: a few tokens that all conversations
/// begin with are no reason to discard one. Among equal slots, the least recently used one is
/// chosen.
pub(crate) fn choose(slots: &[Candidate<'_>], prompt: &[u32]) -> Option<usize> {
    let free = || slots.iter().enumerate().filter(|(_, slot)| slot.is_free);
    let kept = |slot: &Candidate<'_>| {
        let common = common_prefix(slot.tokens, prompt);
        if 2 * common > slot.tokens.len() { common } else { 0 }
    };
    let longest = free().map(|(_, slot)| kept(slot)).max()?;
    let best = free().filter(|(_, slot)| kept(slot) == longest);
    best.min_by_key(|(_, slot)| slot.last_used).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(slots: &[(&[u32], u64, bool)], prompt: &[u32], expect: Option<usize>) {
        let slots: Vec<Candidate<'_>> = slots
            .iter()
            .map(|(tokens, last_used, is_free)| Candidate { tokens, last_used: *last_used, is_free: *is_free })
            .collect();
        assert_eq!(choose(&slots, prompt), expect, "{slots:?} {prompt:?}");
    }

    #[test]
    fn a_conversation_goes_on_where_it_was() {
        check(&[(&[1, 2, 3], 5, true), (&[1, 2, 4, 5], 6, true)], &[1, 2, 4, 5, 6], Some(1));
        check(&[(&[1, 2, 3], 5, true), (&[1, 2, 4, 5], 6, false)], &[1, 2, 4, 5, 6], Some(0));
        check(&[(&[1, 2], 5, true), (&[1, 2, 3], 4, true)], &[1, 2, 3], Some(1));
    }

    #[test]
    fn the_least_recently_used_is_lost() {
        check(&[(&[1, 2, 3, 4], 5, true), (&[1, 8, 9, 9], 4, true)], &[1, 7, 7], Some(1));
        check(&[(&[1, 2, 3, 4], 5, true), (&[], 0, true), (&[], 0, true)], &[1, 7, 7], Some(1));
        check(&[(&[1, 2, 3, 4], 3, true), (&[7], 4, true)], &[9], Some(0));
    }

    #[test]
    fn all_may_be_busy() {
        check(&[(&[], 0, false), (&[1], 1, false)], &[1], None);
        check(&[(&[2], 9, true)], &[1], Some(0));
    }
}
