//! The gated delta rule behind short convolutions, see [`architectures::DeltaNet`].

use anyhow::Result;
use architectures::{Activation, DeltaInput, GateFunction};

use super::{Loader, Pass};
use crate::backend::{Backend, Convolution, LayerSequences, Map, NormOf, Recurrence, RecurrenceInputs, RecurrenceRule};

/// A gated delta rule.
#[derive(Debug)]
pub(crate) struct DeltaNet<B: Backend> {
    query: B::Matrix,
    key: B::Matrix,
    value: B::Matrix,
    gate: NetInput<B>,
    gate_function: GateFunction,
    beta: B::Matrix,
    decay: NetInput<B>,
    output: B::Matrix,
    /// For queries, keys and values.
    convolutions: [Convolution<B>; 3],
    recurrence: Recurrence<B>,
    norm: NormOf<B>,
}

/// A projection of the stream, in one step or through a lower rank.
#[derive(Debug)]
enum NetInput<B: Backend> {
    Plain(B::Matrix),
    LowRank([B::Matrix; 2]),
}

impl<B: Backend> NetInput<B> {
    fn load(loader: &Loader<'_, B>, own: &DeltaInput, output: usize) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let matrix = |projection, input, output| weights.matrix(backend, projection, input, output, None);
        Ok(match own {
            DeltaInput::Plain(whole) => Self::Plain(matrix(whole, hidden, output)?),
            DeltaInput::LowRank(own) => {
                let rank = own.rank as usize;
                Self::LowRank([matrix(&own.down, hidden, rank)?, matrix(&own.up, rank, output)?])
            }
        })
    }

    /// The matrix that is multiplied by the stream.
    fn first(&self) -> &B::Matrix {
        let (Self::Plain(first) | Self::LowRank([first, _])) = self;
        first
    }

    /// Completes the projection of the product with the first matrix.
    fn complete(&self, backend: &B, product: B::Act) -> Result<B::Act> {
        let Self::LowRank([_, up]) = self else { return Ok(product) };
        let [whole] = backend.project([up], &product)?;
        Ok(whole)
    }
}

impl<B: Backend> DeltaNet<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::DeltaNet) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let [key_heads, value_heads, key_dim, value_dim, kernel] =
            [own.key_heads, own.value_heads, own.key_dim, own.value_dim, own.kernel].map(|size| size as usize);
        let steps_per_head = if own.decays_by_row { key_dim } else { 1 };
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let matrix = |projection, output| weights.matrix(backend, projection, hidden, output, None);
        let all = weights.joined_rows(&own.convolution, [2 * keys + values, kernel])?;
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
            gate: NetInput::load(loader, &own.gate, values)?,
            gate_function: own.gate_function,
            beta: matrix(&own.beta, value_heads)?,
            decay: NetInput::load(loader, &own.decay, value_heads * steps_per_head)?,
            output: weights.matrix(backend, &own.output, values, hidden, None)?,
            convolutions: [convolution(0, keys)?, convolution(keys, keys)?, convolution(2 * keys, values)?],
            recurrence: Recurrence {
                key_heads,
                value_heads,
                key_dim,
                value_dim,
                pairing: own.pairing,
                rule: RecurrenceRule::Delta { scale: own.beta_scale as f32 },
                rates_per_head: 1,
                decay_rate: backend.vector(rates)?,
                steps_per_head,
                decay_bias: weights.vector(backend, &own.decay_bias, value_heads * steps_per_head)?,
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
        let matrices = [&self.query, &self.key, &self.value, self.gate.first(), &self.beta, self.decay.first()];
        let [query, key, value, gate, beta, decay] = backend.project(matrices, x)?;
        let (gate, decay) = (self.gate.complete(backend, gate)?, self.decay.complete(backend, decay)?);
        let mut convolved = |index: usize, x: &B::Act| -> Result<B::Act> {
            let x = backend.convolve(&self.convolutions[index], x, sequences)?;
            backend.map(x, Map::Activate(Activation::Silu))
        };
        let (query, key, value) = (convolved(0, &query)?, convolved(1, &key)?, convolved(2, &value)?);
        let inputs =
            RecurrenceInputs { query: &query, key: &key, value: &value, beta: Some(&beta), decay: Some(&decay) };
        let mixed = backend.recur(&self.recurrence, inputs, sequences)?;
        let function = match self.gate_function {
            GateFunction::Silu => Map::Silu(&gate),
            GateFunction::Sigmoid => Map::Sigmoid(&gate),
            GateFunction::Softplus => Map::Softplus(&gate),
        };
        let gated = backend.map(backend.norm(&self.norm, &mixed)?, function)?;
        let [out] = backend.project([&self.output], &gated)?;
        Ok(out)
    }
}
