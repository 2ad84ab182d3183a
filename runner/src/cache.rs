//! The cache of a slot: the tokens that were computed, and the states that the layers keep of them.

use std::sync::Arc;

use anyhow::{Result, ensure};
use architectures::Switch;
use protocol::KvType;

use crate::backend::{Sequence, Span};
use crate::decoder::{Decoder, OpenSequence, Removal};
use crate::picture_rows::{self, PictureRows, begin_of_picture, end_of_cut_picture, is_row};

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
pub(crate) struct SlotCache {
    /// Tokens whose states are computed, from position 0 on.
    tokens: Vec<u32>,
    states: OpenSequence,
    context: usize,
    /// For each complete picture among the tokens, the index behind it, and the number of positions
    /// that it [saves](crate::picture_rows::PictureGrid::saved).
    pictures: Vec<(usize, usize)>,
    /// Whether the sequence uses the second of two sets of rotary frequencies.
    long: bool,
}

impl SlotCache {
    /// Creates an empty sequence.
    ///
    /// # Errors
    /// Fails if the device has no memory for it, or cannot store that type.
    pub(crate) fn new(shape: CacheShape, decoder: &Arc<Decoder>) -> Result<Self> {
        let states = OpenSequence::open(decoder, shape.context, shape.kv_type)?;
        let mut cache = Self { tokens: Vec::new(), states, context: shape.context, pictures: Vec::new(), long: false };
        cache.long = cache.is_long(0);
        Ok(cache)
    }

    /// Returns the sequence for a pass that appends `tokens` generated tokens; `first` is the index
    /// of the first of them in the pass.
    pub(crate) fn sequence(&self, first: usize, tokens: usize) -> Sequence {
        let span = Span { first, position: self.tokens.len(), tokens, is_prompt: false, is_bidirectional: false };
        let saved = self.pictures.iter().map(|(_, saved)| saved).sum();
        Sequence { id: self.states.id(), span, long: self.long, second: None, saved }
    }

    /// Records tokens that a pass has appended. `pictures` has all pictures with rows among them.
    pub(crate) fn advance(&mut self, tokens: &[u32], pictures: &[PictureRows]) {
        if self.states.decoder().has_axes() {
            for (index, id) in (self.tokens.len()..).zip(tokens).filter(|(_, id)| is_row(**id)) {
                let last = picture_rows::find(pictures, *id).filter(|(picture, row)| row + 1 == picture.grid.count());
                self.pictures.extend(last.map(|(picture, _)| (index + 1, picture.grid.saved())));
            }
        }
        self.tokens.extend_from_slice(tokens);
        if tokens.len() > 1 {
            self.states.checkpoint();
        }
    }

    /// Restores the sequence from before a pass that failed.
    pub(crate) fn restore(&mut self) {
        let length = self.states.nearest(self.tokens.len());
        self.truncate(length);
    }

    /// Returns the length of the longest prefix of at most `length` tokens, which this sequence has
    /// in common with `tokens`, that ends in no picture whose rows see each other.
    fn whole(&self, tokens: &[u32], length: usize) -> usize {
        if !self.states.decoder().has_bidirectional_pictures() {
            return length;
        }
        begin_of_picture(&self.tokens, length).min(begin_of_picture(tokens, length))
    }

    fn truncate(&mut self, length: usize) {
        self.states.truncate(length);
        self.tokens.truncate(length);
        self.pictures.retain(|(end, _)| *end <= length);
    }

    /// Takes over the first tokens of another slot's sequence, if this needs no computation and
    /// brings more tokens. Returns their number.
    pub(crate) fn share(&mut self, other: &Self, tokens: &[u32]) -> usize {
        let length = common_prefix(&other.tokens, tokens);
        let length = other.states.nearest(other.whole(tokens, length.min(tokens.len().saturating_sub(1))));
        let own = self.states.nearest(common_prefix(&self.tokens, tokens));
        if length <= own || other.long != self.is_long(tokens.len()) {
            return 0;
        }
        let Some(states) = other.states.share(length) else { return 0 };
        self.states = states;
        self.tokens = other.tokens[..length].to_vec();
        self.pictures = other.pictures.iter().copied().filter(|(end, _)| *end <= length).collect();
        self.long = other.long;
        length
    }

    fn is_long(&self, length: usize) -> bool {
        match self.states.decoder().switch() {
            None => false,
            Some(Switch::Length(most)) => length as u64 > most,
            Some(Switch::Context(most)) => self.context as u64 > most,
        }
    }

    /// Returns the number of tokens that fit.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Returns the tokens that were computed.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Prepares for `tokens`: keeps a common prefix, removes all other tokens, and returns the
    /// number of tokens that remain. The last of `tokens` always remains to be computed, because
    /// its logits are needed.
    pub(crate) fn keep_prefix(&mut self, tokens: &[u32]) -> usize {
        let long = self.is_long(tokens.len());
        let equal = if long == self.long { common_prefix(&self.tokens, tokens) } else { 0 };
        let length = self.states.nearest(self.whole(tokens, equal.min(tokens.len().saturating_sub(1))));
        self.truncate(length);
        self.long = long;
        length
    }

    /// Whether a sequence of that length must be computed from its beginning, because it uses other
    /// rotary frequencies.
    pub(crate) fn begins_anew(&self, length: usize) -> bool {
        self.is_long(length) != self.long
    }

    /// Removes all tokens, for a sequence of a length that [`begins_anew`](Self::begins_anew).
    pub(crate) fn lengthen(&mut self) {
        self.truncate(0);
        self.long = true;
    }

    /// Removes tokens from a full context: the first `keep` stay, and the later half of the rest.
    /// Returns the remaining tokens. The caller must compute again the ones that are not in
    /// [`tokens`](Self::tokens) afterwards.
    pub(crate) fn shift(&mut self, keep: usize) -> Vec<u32> {
        let keep = keep.min(self.tokens.len() / 2);
        let dropped = (self.tokens.len() - keep).div_ceil(2);
        // A picture stays whole or goes.
        let keep = begin_of_picture(&self.tokens, keep);
        let removed = keep..end_of_cut_picture(&self.tokens, keep + dropped);
        let rest = [&self.tokens[..keep], &self.tokens[removed.end..]].concat();
        let removal = Removal { removed, long: self.long };
        let same = self.is_long(rest.len() + 1) == self.long;
        // Positions behind pictures are not those of their rows.
        let possible = same && self.pictures.is_empty() && self.states.can_shift(&removal);
        let shifted = possible && self.states.shift(&removal).is_ok();
        if shifted {
            self.tokens.clone_from(&rest);
        } else {
            // Tokens behind the removed ones must be computed again, because RoPE depends on their
            // positions. A shift that failed half-way leaves no usable states.
            let kept = if possible { 0 } else { common_prefix(&self.tokens, &rest) };
            let kept = self.states.nearest(if same { kept } else { 0 });
            self.truncate(kept);
            self.long = self.is_long(rest.len() + 1);
        }
        rest
    }

    /// Returns the number of tokens that were computed.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Checks that so many more tokens fit.
    pub(crate) fn check_room(&self, tokens: usize) -> Result<()> {
        let room = self.context - self.len();
        ensure!(tokens <= room, "{tokens} tokens do not fit into the {room} that the context has left");
        Ok(())
    }
}

/// Returns the length of the common prefix of two sequences.
pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
