//! The tokens of one slot in a pass, for work that needs an output for each token.

use std::ops::Range;

use anyhow::Result;

use super::{ComputedRows, Take};
use crate::backend::Backend;
use crate::decoder::{Decoder, Stream};

/// Tokens of a pass, with access to their logits and hidden states.
pub(super) struct PassRows<'a, B: Backend> {
    pub(super) decoder: &'a Decoder<B>,
    pub(super) stream: &'a Stream<B>,
    pub(super) tokens: Range<usize>,
}

impl<B: Backend> ComputedRows for PassRows<'_, B> {
    fn logits(&self, each: &mut Take<'_>) -> Result<()> {
        let tokens: Vec<usize> = self.tokens.clone().collect();
        self.decoder.logits(self.stream, &tokens, each)
    }

    fn hidden(&self, each: &mut Take<'_>) -> Result<()> {
        self.decoder.hidden(self.stream, self.tokens.clone(), each)
    }
}
