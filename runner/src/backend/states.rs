//! The states that layers keep of sequences.

use std::fmt::Debug;
use std::ops::Range;

use anyhow::Result;
use architectures::{HeadLayout, LayerState};
use protocol::KvType;

/// Parameters of a new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateShape {
    pub(crate) state: LayerState,
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
