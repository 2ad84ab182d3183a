//! The tokens of one slot in a pass, for work that needs an output for each token.

use std::ops::Range;

use anyhow::Result;

use crate::decoder::{Decoder, TakeRow};

/// Tokens of the last pass, with access to their logits and hidden states.
pub(crate) struct PassRows<'a> {
    pub(super) decoder: &'a Decoder,
    pub(super) tokens: Range<usize>,
}

impl PassRows<'_> {
    /// Calls `each` with the logits after every token, `[vocabulary]`, in order.
    pub(crate) fn logits(&self, each: &mut TakeRow<'_>) -> Result<()> {
        let tokens: Vec<usize> = self.tokens.clone().collect();
        self.decoder.logits(&tokens, each)
    }

    /// Calls `each` with the hidden states that enter the output projection, `[hidden]`, in order.
    pub(crate) fn hidden(&self, each: &mut TakeRow<'_>) -> Result<()> {
        self.decoder.hidden(self.tokens.clone(), each)
    }

    /// Applies the layers behind pooling to the pooled hidden states of a text.
    pub(crate) fn embed(&self, pooled: Vec<f32>) -> Result<Vec<f32>> {
        self.decoder.embed(pooled)
    }
}
