//! The cache of a slot: the tokens that were computed, and the states that the layers keep of them.

use std::sync::Arc;

use anyhow::{Result, ensure};
use architectures::Switch;
use protocol::KvType;

use crate::backend::{Backend, KeyRotation, Sequence, Shift, Span, State};
use crate::decoder::Decoder;

/// The sequence of a slot, as work on the slot uses it.
pub(crate) trait Cache {
    /// Returns the number of tokens that fit.
    fn context(&self) -> usize;
    /// Returns the tokens that were computed.
    fn tokens(&self) -> &[u32];
    /// Prepares for `tokens`: keeps a common prefix, removes all other tokens, and returns the
    /// number of tokens that remain. The last of `tokens` always remains to be computed, because
    /// its logits are needed.
    fn keep_prefix(&mut self, tokens: &[u32]) -> usize;
    /// Whether a sequence of that length must be computed from its beginning, because it uses other
    /// rotary frequencies.
    fn begins_anew(&self, length: usize) -> bool;
    /// Removes all tokens, for a sequence of a length that [`begins_anew`](Self::begins_anew).
    fn lengthen(&mut self);
    /// Removes tokens from a full context: the first `keep` stay, and the later half of the rest.
    /// Returns the remaining tokens. The caller must compute again the ones that are not in
    /// [`tokens`](Self::tokens) afterwards.
    fn shift(&mut self, keep: usize) -> Vec<u32>;

    /// Returns the number of tokens that were computed.
    fn len(&self) -> usize {
        self.tokens().len()
    }

    /// Checks that so many more tokens fit.
    fn check_room(&self, tokens: usize) -> Result<()> {
        let room = self.context() - self.len();
        ensure!(tokens <= room, "{tokens} tokens do not fit into the {room} that the context has left");
        Ok(())
    }
}

/// Size and type of the caches of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    /// Number of tokens that fit.
    pub(crate) context: usize,
    /// Type in which keys and values are stored.
    pub(crate) kv_type: KvType,
}

/// The sequence of a slot, with the states of its layers.
#[derive(Debug)]
pub(crate) struct SlotCache<B: Backend> {
    /// Tokens whose states are computed, from position 0 on.
    tokens: Vec<u32>,
    states: Vec<B::State>,
    context: usize,
    /// Whether the sequence uses the second of two sets of rotary frequencies.
    long: bool,
    /// Knows the rotary embedding of keys.
    decoder: Arc<Decoder<B>>,
}

impl<B: Backend> SlotCache<B> {
    /// Creates an empty sequence.
    ///
    /// # Errors
    /// Fails if the device has no memory for it, or cannot store that type.
    pub(crate) fn new(shape: CacheShape, decoder: &Arc<Decoder<B>>) -> Result<Self> {
        let states = decoder.states(shape.context, shape.kv_type)?;
        let decoder = decoder.clone();
        let mut cache = Self { tokens: Vec::new(), states, context: shape.context, long: false, decoder };
        cache.long = cache.is_long(0);
        Ok(cache)
    }

    /// Returns the sequence for a pass that appends `tokens` generated tokens; `first` is the index
    /// of the first of them in the pass.
    pub(crate) fn sequence(&mut self, first: usize, tokens: usize) -> Sequence<'_, B> {
        let span = Span { first, position: self.tokens.len(), tokens, is_prompt: false };
        Sequence { states: &mut self.states, span, long: self.long, second: None }
    }

    /// Records tokens that a pass has appended.
    pub(crate) fn advance(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        if tokens.len() > 1 {
            self.states.iter_mut().for_each(State::checkpoint);
        }
    }

    /// Restores the sequence from before a pass that failed.
    pub(crate) fn restore(&mut self) {
        let length = self.nearest(self.tokens.len());
        self.truncate(length);
    }

    /// Returns the length of the longest prefix, of at most `length` tokens, that all layers can go
    /// back to.
    fn nearest(&self, mut length: usize) -> usize {
        loop {
            let common = self.states.iter().map(|state| state.nearest(length)).min().unwrap_or(0);
            if common == length {
                return length;
            }
            length = common;
        }
    }

    fn truncate(&mut self, length: usize) {
        self.states.iter_mut().for_each(|state| state.truncate(length));
        self.tokens.truncate(length);
    }

    /// Takes over the first tokens of another slot's sequence, if this needs no computation and
    /// brings more tokens. Returns their number.
    pub(crate) fn share(&mut self, other: &Self, tokens: &[u32]) -> usize {
        let length = common_prefix(&other.tokens, tokens);
        let length = other.nearest(length.min(tokens.len().saturating_sub(1)));
        let own = self.nearest(common_prefix(&self.tokens, tokens));
        if length <= own || other.long != self.is_long(tokens.len()) {
            return 0;
        }
        let Some(states) = other.states.iter().map(|state| state.share(length)).collect() else { return 0 };
        self.states = states;
        self.tokens = other.tokens[..length].to_vec();
        self.long = other.long;
        length
    }

    fn is_long(&self, length: usize) -> bool {
        match self.decoder.switch() {
            None => false,
            Some(Switch::Length(most)) => length as u64 > most,
            Some(Switch::Context(most)) => self.context as u64 > most,
        }
    }
}

impl<B: Backend> Cache for SlotCache<B> {
    fn context(&self) -> usize {
        self.context
    }

    fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn keep_prefix(&mut self, tokens: &[u32]) -> usize {
        let long = self.is_long(tokens.len());
        let equal = if long == self.long { common_prefix(&self.tokens, tokens) } else { 0 };
        let length = self.nearest(equal.min(tokens.len().saturating_sub(1)));
        self.truncate(length);
        self.long = long;
        length
    }

    fn begins_anew(&self, length: usize) -> bool {
        self.is_long(length) != self.long
    }

    fn lengthen(&mut self) {
        self.truncate(0);
        self.long = true;
    }

    fn shift(&mut self, keep: usize) -> Vec<u32> {
        let keep = keep.min(self.tokens.len() / 2);
        let dropped = (self.tokens.len() - keep).div_ceil(2);
        let removed = keep..keep + dropped;
        let rest = [&self.tokens[..keep], &self.tokens[removed.end..]].concat();
        let inverse = self.decoder.inverse_rotary(dropped, self.long);
        let shifts = || {
            inverse.iter().map(|rotation| {
                let rotation = rotation.as_ref().map(|rotation| KeyRotation {
                    cosines: &rotation.cosines,
                    sines: &rotation.sines,
                    layout: rotation.layout,
                    first: rotation.first,
                });
                Shift { removed: removed.clone(), rotation }
            })
        };
        let same = self.is_long(rest.len() + 1) == self.long;
        let possible = same && self.states.iter().zip(shifts()).all(|(state, shift)| state.can_shift(&shift));
        let shifted =
            possible && self.states.iter_mut().zip(shifts()).try_for_each(|(state, shift)| state.shift(&shift)).is_ok();
        if shifted {
            self.tokens.clone_from(&rest);
        } else {
            // Tokens behind the removed ones must be computed again, because RoPE depends on their
            // positions. A shift that failed half-way leaves no usable states.
            let kept = if possible { 0 } else { common_prefix(&self.tokens, &rest) };
            let kept = self.nearest(if same { kept } else { 0 });
            self.truncate(kept);
            self.long = self.is_long(rest.len() + 1);
        }
        rest
    }
}

/// Returns the length of the common prefix of two sequences.
pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
