//! The sequences of a pass.

use anyhow::{Context, Result};

use super::Backend;
use super::states::{SequenceId, StatesBySequence};

/// A sequence in a pass, and the tokens that the pass appends to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) span: Span,
    /// Whether the sequence uses the frequencies of long sequences.
    pub(crate) long: bool,
    /// Index of the first token of the second text, counted among the sequence's tokens in this
    /// pass. `None` if no token belongs to a second text.
    pub(crate) second: Option<usize>,
    /// Number of positions fewer than tokens that earlier pictures take, see
    /// [`PictureGrid::saved`](crate::picture_rows::PictureGrid::saved).
    pub(crate) saved: usize,
}

/// The tokens of a sequence in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Index of the first among the tokens of the pass.
    pub(crate) first: usize,
    /// Position of the first in the sequence.
    pub(crate) position: usize,
    /// Number of tokens.
    pub(crate) tokens: usize,
    /// Whether the tokens are given, as those of a prompt, and not generated one by one.
    pub(crate) is_prompt: bool,
    /// Whether the tokens see each other, as the rows of a picture do in some models, and not only
    /// those before them.
    pub(crate) is_bidirectional: bool,
}

impl Span {
    /// Returns the first position after the span.
    pub(crate) fn end(self) -> usize {
        self.position + self.tokens
    }
}

/// The sequences of a pass, with their states in all layers of a stage.
pub(crate) struct StageSequences<'a, B: Backend> {
    pub(crate) sequences: &'a [Sequence],
    pub(crate) layers: &'a mut [StatesBySequence<B::State>],
}

impl<B: Backend> StageSequences<'_, B> {
    /// Returns the sequences for a layer, with their states in the layer `source`.
    pub(crate) fn layer(&mut self, layer: usize, source: usize) -> LayerSequences<'_, B> {
        LayerSequences { sequences: self.sequences, states: &mut self.layers[source], layer }
    }

    /// Returns the sequences for a layer, with their states in the layer `source`, and the states
    /// in another layer to be read.
    ///
    /// # Errors
    /// Fails if both are the same.
    pub(crate) fn layer_beside(
        &mut self,
        layer: usize,
        [source, other]: [usize; 2],
    ) -> Result<(LayerSequences<'_, B>, &StatesBySequence<B::State>)> {
        let [states, other] =
            self.layers.get_disjoint_mut([source, other]).context("invariant: these are two states")?;
        Ok((LayerSequences { sequences: self.sequences, states, layer }, other))
    }
}

/// The sequences of a pass, with their states in one layer.
pub(crate) struct LayerSequences<'a, B: Backend> {
    pub(crate) sequences: &'a [Sequence],
    pub(crate) states: &'a mut StatesBySequence<B::State>,
    /// Index of the layer in its stage.
    pub(crate) layer: usize,
}

impl<B: Backend> LayerSequences<'_, B> {
    /// Calls `each` with the tokens and the state of each sequence; returns the results in order.
    pub(crate) fn each<T>(&mut self, mut each: impl FnMut(Span, &mut B::State) -> Result<T>) -> Result<Vec<T>> {
        self.sequences.iter().map(|sequence| each(sequence.span, self.states.get_mut(sequence.id)?)).collect()
    }
}
