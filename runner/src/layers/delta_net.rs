//! The gated delta rule behind short convolutions, see [`architectures::DeltaNet`].

use anyhow::Result;
use architectures::Activation;

use super::{Loader, Pass};
use crate::backend::{Backend, Convolution, LayerSequences, Map, NormOf, Recurrence, RecurrenceInputs, RecurrenceRule};

/// A gated delta rule.
#[derive(Debug)]
pub(crate) struct DeltaNet<B: Backend> {
    query: B::Matrix,
    key: B::Matrix,
    value: B::Matrix,
    gate: B::Matrix,
    beta: B::Matrix,
    decay: B::Matrix,
    output: B::Matrix,
    /// For queries, keys and values.
    convolutions: [Convolution<B>; 3],
    recurrence: Recurrence<B>,
    norm: NormOf<B>,
}

impl<B: Backend> DeltaNet<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::DeltaNet) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let [key_heads, value_heads, key_dim, value_dim, kernel] =
            [own.key_heads, own.value_heads, own.key_dim, own.value_dim, own.kernel].map(|size| size as usize);
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let matrix = |projection, output| weights.matrix(backend, projection, hidden, output, None);
        let all = weights.numbers(&own.convolution, &[2 * keys + values, kernel])?;
        let mut rates = weights.numbers(own.decay_rate.tensor(), &[value_heads])?;
        for rate in &mut rates {
            *rate = own.decay_rate.rate(*rate);
        }
        // The past inputs of the convolutions follow the matrices of the heads in the state.
        let memory = value_heads * key_dim * value_dim;
        let convolution = |first: usize, width: usize| -> Result<Convolution<B>> {
            let weight = backend.vector(all[first * kernel..(first + width) * kernel].to_vec())?;
            Ok(Convolution { weight, bias: None, kernel, at: memory + first * (kernel - 1) })
        };
        Ok(Self {
            query: matrix(&own.query, keys)?,
            key: matrix(&own.key, keys)?,
            value: matrix(&own.value, values)?,
            gate: matrix(&own.gate, values)?,
            beta: matrix(&own.beta, value_heads)?,
            decay: matrix(&own.decay, value_heads)?,
            output: weights.matrix(backend, &own.output, values, hidden, None)?,
            convolutions: [convolution(0, keys)?, convolution(keys, keys)?, convolution(2 * keys, values)?],
            recurrence: Recurrence {
                key_heads,
                value_heads,
                key_dim,
                value_dim,
                pairing: own.pairing,
                rule: RecurrenceRule::Delta { scale: 1.0 },
                rates_per_head: 1,
                decay_rate: backend.vector(rates)?,
                decay_bias: weights.vector(backend, &own.decay_bias, value_heads)?,
            },
            norm: weights.norm(backend, &own.norm, value_dim)?,
        })
    }

    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut LayerSequences<'_, B>,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let matrices = [&self.query, &self.key, &self.value, &self.gate, &self.beta, &self.decay];
        let [query, key, value, gate, beta, decay] = backend.project(matrices, x)?;
        let mut convolved = |index: usize, x: &B::Act| -> Result<B::Act> {
            let x = backend.convolve(&self.convolutions[index], x, sequences)?;
            backend.map(x, Map::Activate(Activation::Silu))
        };
        let (query, key, value) = (convolved(0, &query)?, convolved(1, &key)?, convolved(2, &value)?);
        let inputs = RecurrenceInputs { query: &query, key: &key, value: &value, beta: Some(&beta), decay: &decay };
        let mixed = backend.recur(&self.recurrence, inputs, sequences)?;
        let normed = backend.map(backend.norm(&self.norm, &mixed)?, Map::Silu(&gate))?;
        let [out] = backend.project([&self.output], &normed)?;
        Ok(out)
    }
}
