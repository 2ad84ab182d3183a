//! The gated short convolution, see [`architectures::ShortConv`].

use anyhow::Result;

use super::{Loader, Pass};
use crate::backend::{Backend, Convolution, LayerSequences, Map};

/// A gated short convolution.
#[derive(Debug)]
pub(crate) struct ShortConv<B: Backend> {
    before: B::Matrix,
    after: B::Matrix,
    input: B::Matrix,
    output: B::Matrix,
    convolution: Convolution<B>,
}

impl<B: Backend> ShortConv<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::ShortConv) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let (width, kernel) = (own.width as usize, own.kernel as usize);
        let matrix = |projection| weights.matrix(backend, projection, hidden, width, None);
        let bias = own.convolution_bias.as_ref().map(|bias| weights.vector(backend, bias, width)).transpose()?;
        Ok(Self {
            before: matrix(&own.before)?,
            after: matrix(&own.after)?,
            input: matrix(&own.input)?,
            output: weights.matrix(backend, &own.output, width, hidden, None)?,
            convolution: Convolution {
                weight: backend.vector(weights.numbers(&own.convolution, &[width, kernel])?)?,
                bias,
                kernel,
                at: 0,
            },
        })
    }

    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut LayerSequences<'_, B>,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let [before, after, input] = backend.project([&self.before, &self.after, &self.input], x)?;
        let gated = backend.map(input, Map::Times(&before))?;
        let mixed = backend.convolve(&self.convolution, &gated, sequences)?;
        let [out] = backend.project([&self.output], &backend.map(mixed, Map::Times(&after))?)?;
        Ok(out)
    }
}
