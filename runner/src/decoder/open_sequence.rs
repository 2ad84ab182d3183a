//! An open sequence: its states in all stages of a decoder.

use std::sync::Arc;

use anyhow::Result;
use protocol::KvType;

use super::Decoder;
use super::stage::Removal;
use crate::backend::SequenceId;

/// An open sequence of a decoder. Its states are dropped with this value.
#[derive(Debug)]
pub(crate) struct OpenSequence {
    decoder: Arc<Decoder>,
    id: SequenceId,
}

impl OpenSequence {
    /// Creates the states of a new sequence of at most `context` tokens.
    ///
    /// # Errors
    /// Fails if a device has no memory for them, or cannot store that type.
    pub(crate) fn open(decoder: &Arc<Decoder>, context: usize, kv_type: KvType) -> Result<Self> {
        let states = Self::empty(decoder);
        decoder.stages.iter().try_for_each(|stage| stage.open(states.id, context, kv_type))?;
        Ok(states)
    }

    fn empty(decoder: &Arc<Decoder>) -> Self {
        Self { id: decoder.sequence_ids.take(), decoder: decoder.clone() }
    }

    pub(crate) fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    pub(crate) fn id(&self) -> SequenceId {
        self.id
    }

    /// Returns separate states of the first `length` tokens, if this needs no computation.
    pub(crate) fn share(&self, length: usize) -> Option<Self> {
        let shared = Self::empty(&self.decoder);
        if let Some(history) = self.decoder.embedding.history() {
            history.share(self.id, shared.id, length);
        }
        self.decoder.stages.iter().all(|stage| stage.share(self.id, shared.id, length)).then_some(shared)
    }

    /// Returns the length of the longest prefix, of at most `length` tokens, that all layers can go
    /// back to.
    pub(crate) fn nearest(&self, mut length: usize) -> usize {
        loop {
            let each = self.decoder.stages.iter().map(|stage| stage.nearest(self.id, length));
            let common = each.min().unwrap_or(0);
            if common == length {
                return length;
            }
            length = common;
        }
    }

    /// Goes back to a length that [`nearest`](Self::nearest) returned.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.decoder.stages.iter().for_each(|stage| stage.truncate(self.id, length));
    }

    /// Saves the current position in layers that could not go back to it otherwise.
    pub(crate) fn checkpoint(&mut self) {
        self.decoder.stages.iter().for_each(|stage| stage.checkpoint(self.id));
    }

    /// Whether these tokens can be removed.
    pub(crate) fn can_shift(&self, removal: &Removal) -> bool {
        self.decoder.stages.iter().all(|stage| stage.can_shift(self.id, removal))
    }

    /// Removes tokens; later tokens move up.
    ///
    /// # Errors
    /// Fails if there is no memory. The states are then unusable.
    pub(crate) fn shift(&mut self, removal: &Removal) -> Result<()> {
        self.decoder.stages.iter().try_for_each(|stage| stage.shift(self.id, removal))
    }
}

impl Drop for OpenSequence {
    fn drop(&mut self) {
        self.decoder.stages.iter().for_each(|stage| stage.close(self.id));
        if let Some(history) = self.decoder.embedding.history() {
            history.close(self.id);
        }
        self.decoder.sequence_ids.give_back(self.id);
    }
}
