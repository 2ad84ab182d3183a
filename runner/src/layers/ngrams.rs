//! The part of a layer that adds n-grams of tokens to the streams, see
//! [`architectures::NgramInput`].

use anyhow::Result;
use architectures::Activation;

use super::Loader;
use super::streams::copies;
use crate::backend::{Backend, Convolution, LayerSequences, Map, MatrixSource, NormOf, WeightSource};

/// Smallest magnitude of the products of keys and streams whose root is taken.
const LEAST: f32 = 1e-6;

/// The part of a layer.
#[derive(Debug)]
pub(crate) struct NgramInput<B: Backend> {
    key: B::Matrix,
    value: B::Matrix,
    key_norm: NormOf<B>,
    query_norm: NormOf<B>,
    /// Adds up the elements of each stream.
    sums: B::Matrix,
    convolution_norm: NormOf<B>,
    convolution: Convolution<B>,
    count: usize,
    hidden: usize,
}

impl<B: Backend> NgramInput<B> {
    pub(crate) fn load(loader: &Loader<'_, B>, own: &architectures::NgramInput, count: usize) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let (embedded, width) = (own.embedding.embedded() as usize, count * hidden);
        let [kernel, dilation] = [own.kernel, own.dilation].map(|size| size as usize);
        let norm = |norm| weights.norm_of_heads(backend, norm, [count, hidden]);
        let numbers = (0..count * width).map(|at| if at % width / hidden == at / width { 1.0 } else { 0.0 }).collect();
        let weight = WeightSource::Numbers { numbers, shape: [count, width] };
        // Positions that the convolution leaves out have weights of zero.
        let narrow = weights.numbers(&own.convolution, &[width, kernel])?;
        let all = dilation * (kernel - 1) + 1;
        let mut wide = vec![0.0; width * all];
        for (wide, narrow) in wide.chunks_exact_mut(all).zip(narrow.chunks_exact(kernel)) {
            wide.iter_mut().step_by(dilation).zip(narrow).for_each(|(wide, narrow)| *wide = *narrow);
        }
        Ok(Self {
            key: weights.matrix(backend, &own.key, embedded, width, None)?,
            value: weights.matrix(backend, &own.value, embedded, hidden, None)?,
            key_norm: norm(&own.key_norm)?,
            query_norm: norm(&own.query_norm)?,
            sums: backend.matrix(MatrixSource { weight, bias: None, adapters: Vec::new() })?,
            convolution_norm: norm(&own.convolution_norm)?,
            convolution: Convolution { weight: backend.vector(wide)?, bias: None, kernel: all, at: 0 },
            count,
            hidden,
        })
    }

    /// Adds the n-grams of the tokens, of which `embedded` are the embeddings, to the streams.
    pub(crate) fn add(
        &self,
        backend: &B,
        streams: B::Act,
        embedded: &B::Act,
        sequences: &mut LayerSequences<'_, B>,
    ) -> Result<B::Act> {
        let gate = self.gate(backend, &streams, embedded)?;
        let [value] = backend.project([&self.value], embedded)?;
        let gated = backend.map(copies(backend, &value, self.count)?, Map::Sigmoid(&gate))?;
        let mixed = backend.convolve(&self.convolution, &backend.norm(&self.convolution_norm, &gated)?, sequences)?;
        let mixed = backend.map(mixed, Map::Activate(Activation::Silu))?;
        backend.map(backend.map(streams, Map::Add(&gated, 1.0))?, Map::Add(&mixed, 1.0))
    }

    /// Returns the numbers whose sigmoids multiply the values: one for each stream.
    fn gate(&self, backend: &B, streams: &B::Act, embedded: &B::Act) -> Result<B::Act> {
        let [key] = backend.project([&self.key], embedded)?;
        let key = backend.norm(&self.key_norm, &key)?;
        let products = backend.map(key, Map::Times(&backend.norm(&self.query_norm, streams)?))?;
        let [gate] = backend.project([&self.sums], &products)?;
        let gate = backend.map(gate, Map::Scale((self.hidden as f32).powf(-0.5)))?;
        backend.map(gate, Map::SignedRoot(LEAST))
    }
}
