//! The tokens of open sequences, for models whose embedding of a token depends on the tokens before
//! it. They are never removed from the middle of a sequence, because the layers that need them have
//! states that cannot be shifted.

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};

use crate::backend::{Sequence, SequenceId};

/// The tokens of each open sequence, by the index of its id.
#[derive(Debug, Default)]
pub(super) struct TokenHistory(Mutex<Vec<Vec<u32>>>);

impl TokenHistory {
    /// Appends the tokens of a pass. A sequence that went back to a shorter length loses the tokens
    /// behind it here.
    pub(super) fn append(&self, ids: &[u32], sequences: &[Sequence]) -> Result<()> {
        self.change(|all| {
            for sequence in sequences {
                let (span, at) = (sequence.span, sequence.id.index());
                if all.len() <= at {
                    all.resize_with(at + 1, Vec::new);
                }
                ensure!(all[at].len() >= span.position, "invariant: the tokens before a pass are known");
                all[at].truncate(span.position);
                all[at].extend_from_slice(&ids[span.first..span.first + span.tokens]);
            }
            Ok(())
        })
    }

    /// Calls `read` with the tokens of all sequences, by the index of their ids.
    pub(super) fn read<T>(&self, read: impl FnOnce(&[Vec<u32>]) -> T) -> T {
        self.change(|all| read(all))
    }

    /// Copies the first `length` tokens of a sequence to another one.
    pub(super) fn share(&self, from: SequenceId, to: SequenceId, length: usize) {
        self.change(|all| {
            let tokens = all.get(from.index()).map(|own| own[..length.min(own.len())].to_vec()).unwrap_or_default();
            if all.len() <= to.index() {
                all.resize_with(to.index() + 1, Vec::new);
            }
            all[to.index()] = tokens;
        });
    }

    /// Forgets a sequence.
    pub(super) fn close(&self, id: SequenceId) {
        self.change(|all| {
            if let Some(own) = all.get_mut(id.index()) {
                *own = Vec::new();
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<Vec<u32>>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Span;

    #[test]
    fn tokens_are_kept_by_sequence() {
        let history = TokenHistory::default();
        let [first, second] = [0, 1].map(SequenceId::new);
        let sequence = |id, first, position, tokens| Sequence {
            id,
            span: Span { first, position, tokens, is_prompt: true, is_bidirectional: false },
            long: false,
            second: None,
            saved: 0,
        };
        history.append(&[1, 2, 3, 7], &[sequence(first, 0, 0, 3), sequence(second, 3, 0, 1)]).expect("both");
        history.append(&[9], &[sequence(first, 0, 1, 1)]).expect("a shorter sequence");
        history.read(|all| assert_eq!(all, [vec![1, 9], vec![7]]));
        history.share(first, second, 1);
        history.read(|all| assert_eq!(all, [vec![1, 9], vec![1]]));
        history.close(second);
        history.read(|all| assert_eq!(all, [vec![1, 9], vec![]]));
        assert!(history.append(&[4], &[sequence(second, 0, 3, 1)]).is_err());
    }
}
