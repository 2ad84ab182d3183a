//! A stage: consecutive layers of a decoder on one backend. Rows enter it and rows leave it; the
//! states that its layers keep of sequences stay inside.

use std::fmt::Debug;
use std::ops::Range;

use anyhow::Result;
use protocol::KvType;

use crate::backend::{Best, Selection, Sequence, SequenceId, TokenPosition};
use crate::picture_rows::{self, PictureRows, is_row};

/// The tokens of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassTokens<'a> {
    /// Positions of each token in its sequence.
    pub(super) positions: &'a [TokenPosition],
    /// For each token, whether its sequence uses the frequencies of long sequences.
    pub(super) long: &'a [bool],
    pub(super) sequences: &'a [Sequence],
    /// Rows that are added to the stream behind the first layers of the decoder.
    pub(super) deep: &'a DeepRows,
}

/// Rows of pictures that are added to the stream behind the first layers of the decoder.
#[derive(Debug, Default)]
pub(super) struct DeepRows {
    /// Indexes of the rows' tokens in the pass.
    pub(super) tokens: Vec<usize>,
    /// For each of these layers, `[rows, hidden]`.
    pub(super) layers: Vec<Vec<f32>>,
}

impl DeepRows {
    /// Collects the rows of the tokens of a pass.
    pub(super) fn fill(&mut self, ids: &[u32], pictures: &[PictureRows]) {
        self.tokens.clear();
        self.layers.clear();
        if pictures.iter().all(|picture| picture.encoded.deep.is_empty()) {
            return;
        }
        for (token, id) in ids.iter().enumerate().filter(|(_, id)| is_row(**id)) {
            let Some((picture, row)) = picture_rows::find(pictures, *id) else { continue };
            self.tokens.push(token);
            let PictureRows { grid, encoded } = picture;
            self.layers.resize(encoded.deep.len(), Vec::new());
            for (layer, deep) in self.layers.iter_mut().zip(&encoded.deep) {
                let width = deep.len() / grid.count();
                layer.extend_from_slice(&deep[row * width..(row + 1) * width]);
            }
        }
    }
}

/// Tokens that are removed from a sequence; later tokens move up.
#[derive(Clone, Debug)]
pub(crate) struct Removal {
    pub(crate) removed: Range<usize>,
    /// Whether the sequence uses the frequencies of long sequences.
    pub(crate) long: bool,
}

/// The logits after a token, in the form that the caller requested.
pub(crate) enum Logits<'a> {
    /// All of them, `[vocabulary]`.
    Row(&'a [f32]),
    /// The best candidates.
    Best(Best),
}

/// Writes rows of activations, `[tokens, width]`.
pub(super) type Fill<'a> = dyn FnMut(&mut [f32]) -> Result<()> + 'a;

/// Takes a row of numbers.
pub(crate) type TakeRow<'a> = dyn FnMut(&[f32]) -> Result<()> + 'a;

/// Takes the logits of an entry of a list, with its index.
pub(crate) type TakeLogits<'a> = dyn FnMut(usize, Logits<'_>) -> Result<()> + 'a;

/// Consecutive layers of a decoder on one backend. The last stage also has the final norm and the
/// output projection.
pub(super) trait Stage: Debug + Send + Sync {
    /// Creates the states of a new sequence of at most `context` tokens.
    ///
    /// # Errors
    /// Fails if the device has no memory for them, or cannot store that type.
    fn open(&self, id: SequenceId, context: usize, kv_type: KvType) -> Result<()>;
    /// Drops the states of a sequence.
    fn close(&self, id: SequenceId);
    /// Creates the states of sequence `to` from the first `length` tokens of sequence `from`.
    /// Returns `false` if this needs computation; some states of `to` may then be missing.
    fn share(&self, from: SequenceId, to: SequenceId, length: usize) -> bool;
    /// Returns the length of the longest prefix, of at most `length` tokens, that each layer for
    /// itself can go back to.
    fn nearest(&self, id: SequenceId, length: usize) -> usize;
    /// Goes back to a length that all layers can go back to.
    fn truncate(&self, id: SequenceId, length: usize);
    /// Saves the current position in layers that could not go back to it otherwise.
    fn checkpoint(&self, id: SequenceId);
    /// Whether these tokens can be removed from the states.
    fn can_shift(&self, id: SequenceId, removal: &Removal) -> bool;
    /// Removes tokens from the states.
    ///
    /// # Errors
    /// Fails if there is no memory. The states are then unusable.
    fn shift(&self, id: SequenceId, removal: &Removal) -> Result<()>;

    /// Returns how many of `tokens` one pass may append at most to a sequence of `length`.
    fn chunk(&self, length: usize, tokens: usize) -> usize;
    /// Computes the layers for rows that `fill` writes, one for each token. The stage keeps the
    /// resulting rows until they are [read](Self::read) or [forgotten](Self::forget), which must
    /// have happened before the next pass.
    ///
    /// # Errors
    /// Fails if `fill` fails, or there is no memory. There are no resulting rows then.
    fn forward(&self, tokens: PassTokens<'_>, fill: &mut Fill<'_>) -> Result<()>;
    /// Calls `take` with all resulting rows, in order, and drops them.
    ///
    /// # Errors
    /// Fails if there are no rows, the device fails, or `take` fails.
    fn read(&self, take: &mut TakeRow<'_>) -> Result<()>;
    /// Drops the resulting rows.
    fn forget(&self);

    /// Whether the last stage can find the best candidates of logits without copying the logits to
    /// the host.
    fn selects(&self) -> bool;
    /// See [`Decoder::logits`](super::Decoder::logits).
    fn logits(&self, tokens: &[usize], take: &mut TakeRow<'_>) -> Result<()>;
    /// See [`Decoder::best`](super::Decoder::best).
    fn best(&self, wanted: &[(usize, Option<Selection>)], take: &mut TakeLogits<'_>) -> Result<()>;
    /// See [`Decoder::hidden`](super::Decoder::hidden).
    fn hidden(&self, tokens: Range<usize>, take: &mut TakeRow<'_>) -> Result<()>;

    /// See [`Decoder::embed`](super::Decoder::embed).
    fn embed(&self, pooled: Vec<f32>) -> Result<Vec<f32>>;

    /// Returns the number of passes that were replayed from a recording.
    #[cfg(test)]
    fn replays(&self) -> u64;
}
