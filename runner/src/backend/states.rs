//! The states that layers keep of sequences.

use std::fmt::Debug;
use std::ops::Range;

use anyhow::{Context, Result};
use architectures::{HeadLayout, LayerState};
use protocol::KvType;

/// Identifies an open sequence in all layers of a decoder. The id of a closed sequence is used
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequenceId(usize);

impl SequenceId {
    /// Returns the id with an index. Only the decoder gives ids to sequences.
    pub(crate) fn new(index: usize) -> Self {
        Self(index)
    }

    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// Parameters of a new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateShape {
    pub(crate) state: LayerState,
    /// Whether the mixer has [plain scores](architectures::Mixer::has_plain_scores). Devices have
    /// kernels only for them.
    pub(crate) has_plain_scores: bool,
    /// Largest number of tokens of a sequence.
    pub(crate) context: usize,
    /// Type in which keys and values are stored.
    pub(crate) kv_type: KvType,
}

/// The state that a layer keeps of a sequence. The states of all layers of a sequence have the same
/// length.
pub(crate) trait State: Debug + Send + Sized {
    /// Returns the length of the longest prefix, of at most `length` tokens, that the state can go
    /// back to.
    fn nearest(&self, length: usize) -> usize;
    /// Goes back to a length that [`nearest`](Self::nearest) returned.
    fn truncate(&mut self, length: usize);
    /// Saves the current position, if the state could not go back to it otherwise.
    fn checkpoint(&mut self);
    /// Whether these positions can be removed from the state.
    fn can_shift(&self, shift: &Shift<'_>) -> bool;
    /// Removes positions from the state.
    ///
    /// # Errors
    /// Fails if there is no memory.
    fn shift(&mut self, shift: &Shift<'_>) -> Result<()>;
    /// Returns a separate state with the first `length` tokens, if this needs no computation.
    fn share(&self, length: usize) -> Option<Self>;
}

/// Positions that are removed from a sequence; later positions move up.
#[derive(Clone, Debug)]
pub(crate) struct Shift<'a> {
    pub(crate) removed: Range<usize>,
    /// Rotation that takes keys to their new positions; `None` if RoPE is not applied to keys.
    pub(crate) rotation: Option<KeyRotation<'a>>,
}

/// A rotation of a part of each key by the same angles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRotation<'a> {
    pub(crate) cosines: &'a [f32],
    pub(crate) sines: &'a [f32],
    pub(crate) layout: HeadLayout,
    /// Index of the first element of the part.
    pub(crate) first: usize,
}

/// The states that one layer keeps of all open sequences.
#[derive(Debug)]
pub(crate) struct StatesBySequence<S>(Vec<Option<S>>);

impl<S> StatesBySequence<S> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the state of an open sequence.
    pub(crate) fn get(&self, id: SequenceId) -> Result<&S> {
        self.0.get(id.0).and_then(Option::as_ref).context("invariant: the sequence is open")
    }

    /// Returns the state of an open sequence, to change it.
    pub(crate) fn get_mut(&mut self, id: SequenceId) -> Result<&mut S> {
        self.0.get_mut(id.0).and_then(Option::as_mut).context("invariant: the sequence is open")
    }

    pub(crate) fn insert(&mut self, id: SequenceId, state: S) {
        if self.0.len() <= id.0 {
            self.0.resize_with(id.0 + 1, || None);
        }
        self.0[id.0] = Some(state);
    }

    /// Drops the state of a sequence, if there is one.
    pub(crate) fn remove(&mut self, id: SequenceId) {
        if let Some(state) = self.0.get_mut(id.0) {
            *state = None;
        }
    }
}
