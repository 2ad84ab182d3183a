//! The state space model behind a short convolution, see [`architectures::StateSpace`].

use anyhow::{Context, Result};
use architectures::{Activation, HeadPairing};

use super::{Loader, Pass};
use crate::backend::{Backend, Convolution, LayerSequences, Map, NormOf, Recurrence, RecurrenceInputs, RecurrenceRule};

/// A state space model.
#[derive(Debug)]
pub(crate) struct StateSpace<B: Backend> {
    gate: B::Matrix,
    input: B::Matrix,
    write: B::Matrix,
    read: B::Matrix,
    step: B::Matrix,
    output: B::Matrix,
    /// Factors of the outputs of the first five.
    scales: Option<[f32; 5]>,
    /// For `input`, `write` and `read`.
    convolutions: [Convolution<B>; 3],
    recurrence: Recurrence<B>,
    /// The norm, and whether it is applied before the gate.
    norm: Option<(NormOf<B>, bool)>,
}

impl<B: Backend> StateSpace<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::StateSpace) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let [heads, groups, head_dim, state_dim, kernel] =
            [own.heads, own.groups, own.head_dim, own.state_dim, own.kernel].map(|size| size as usize);
        let (inner, shared) = (heads * head_dim, groups * state_dim);
        let matrix = |projection, output| weights.matrix(backend, projection, hidden, output, None);
        let channels = inner + 2 * shared;
        let kernels = weights.numbers(&own.convolution, &[channels, kernel])?;
        let biases = own.convolution_bias.as_ref().map(|bias| weights.numbers(bias, &[channels])).transpose()?;
        // The past inputs of the convolutions follow the matrices of the heads in the state.
        let memory = heads * head_dim * state_dim;
        let convolution = |first: usize, width: usize| -> Result<Convolution<B>> {
            let weight = backend.vector(kernels[first * kernel..(first + width) * kernel].to_vec())?;
            let bias = biases.as_ref().map(|bias| backend.vector(bias[first..first + width].to_vec())).transpose()?;
            Ok(Convolution { weight, bias, kernel, at: memory + first * (kernel - 1) })
        };
        let mut rates = weights.numbers(own.decay_rate.tensor(), &[heads])?;
        for rate in &mut rates {
            *rate = own.decay_rate.rate(*rate);
        }
        let (least, most) = own.step_limits;
        let norm = |gated: &architectures::StateSpaceNorm| -> Result<(NormOf<B>, bool)> {
            let groups = gated.groups as usize;
            Ok((weights.norm_of_heads(backend, &gated.norm, [groups, inner / groups])?, gated.precedes_gate))
        };
        Ok(Self {
            gate: matrix(&own.gate, inner)?,
            input: matrix(&own.input, inner)?,
            write: matrix(&own.write, shared)?,
            read: matrix(&own.read, shared)?,
            step: matrix(&own.step, heads)?,
            output: weights.matrix(backend, &own.output, inner, hidden, None)?,
            scales: own.scales.map(|scales| scales.map(|scale| scale as f32)),
            convolutions: [convolution(0, inner)?, convolution(inner, shared)?, convolution(inner + shared, shared)?],
            recurrence: Recurrence {
                key_heads: groups,
                value_heads: heads,
                key_dim: state_dim,
                value_dim: head_dim,
                pairing: HeadPairing::Grouped,
                rule: RecurrenceRule::StateSpace {
                    limits: [least as f32, most.map_or(f32::INFINITY, |most| most as f32)],
                    skip: weights.vector(backend, &own.skip, heads)?,
                },
                rates_per_head: 1,
                decay_rate: backend.vector(rates)?,
                steps_per_head: 1,
                decay_bias: weights.vector(backend, &own.step_bias, heads)?,
            },
            norm: own.norm.as_ref().map(norm).transpose()?,
        })
    }

    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut LayerSequences<'_, B>,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let matrices = [&self.gate, &self.input, &self.write, &self.read, &self.step];
        let mut inputs = backend.project(matrices, x)?;
        if let Some(scales) = self.scales {
            let mut scaled = Vec::with_capacity(scales.len());
            for (x, scale) in inputs.into_iter().zip(scales) {
                scaled.push(backend.map(x, Map::Scale(scale))?);
            }
            inputs = scaled.try_into().ok().context("invariant: there are as many outputs as inputs")?;
        }
        let [gate, input, write, read, step] = inputs;
        let mut convolved = |index: usize, x: &B::Act| -> Result<B::Act> {
            let x = backend.convolve(&self.convolutions[index], x, sequences)?;
            backend.map(x, Map::Activate(Activation::Silu))
        };
        let (input, write, read) = (convolved(0, &input)?, convolved(1, &write)?, convolved(2, &read)?);
        let inputs = RecurrenceInputs { query: &read, key: &write, value: &input, beta: None, decay: Some(&step) };
        let mixed = backend.recur(&self.recurrence, inputs, sequences)?;
        let gated = match &self.norm {
            Some((norm, true)) => backend.map(backend.norm(norm, &mixed)?, Map::Silu(&gate))?,
            Some((norm, false)) => backend.norm(norm, &backend.map(mixed, Map::Silu(&gate))?)?,
            None => backend.map(mixed, Map::Silu(&gate))?,
        };
        let [out] = backend.project([&self.output], &gated)?;
        Ok(out)
    }
}
