//! The selective state space model behind a short convolution, see
//! [`architectures::SelectiveScan`].

use anyhow::Result;
use architectures::{Activation, HeadPairing, Norm};

use super::{Loader, Pass};
use crate::backend::{Backend, Convolution, LayerSequences, Map, NormOf, Recurrence, RecurrenceInputs, RecurrenceRule};

/// A selective state space model.
#[derive(Debug)]
pub(crate) struct SelectiveScan<B: Backend> {
    gate: B::Matrix,
    input: B::Matrix,
    convolution: Convolution<B>,
    step_down: B::Matrix,
    step_norm: Option<NormOf<B>>,
    step_up: B::Matrix,
    write: B::Matrix,
    write_norm: Option<NormOf<B>>,
    read: B::Matrix,
    read_norm: Option<NormOf<B>>,
    recurrence: Recurrence<B>,
    output: B::Matrix,
}

impl<B: Backend> SelectiveScan<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::SelectiveScan) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let [width, state_dim, rank, kernel] =
            [own.width, own.state_dim, own.step.rank, own.kernel].map(|size| size as usize);
        let matrix = |projection, input, output| weights.matrix(backend, projection, input, output, None);
        let norm =
            |norm: &Option<Norm>, width| norm.as_ref().map(|norm| weights.norm(backend, norm, width)).transpose();
        let mut rates = weights.numbers(own.decay_rate.tensor(), &[width, state_dim])?;
        for rate in &mut rates {
            *rate = own.decay_rate.rate(*rate);
        }
        let bias = own.convolution_bias.as_ref().map(|bias| weights.vector(backend, bias, width)).transpose()?;
        Ok(Self {
            gate: matrix(&own.gate, hidden, width)?,
            input: matrix(&own.input, hidden, width)?,
            convolution: Convolution {
                weight: backend.vector(weights.numbers(&own.convolution, &[width, kernel])?)?,
                bias,
                kernel,
                // The past inputs follow the states of the channels.
                at: width * state_dim,
            },
            step_down: matrix(&own.step.down, width, rank)?,
            step_norm: norm(&own.step.norm, rank)?,
            step_up: matrix(&own.step.up, rank, width)?,
            write: matrix(&own.write.by, width, state_dim)?,
            write_norm: norm(&own.write.norm, state_dim)?,
            read: matrix(&own.read.by, width, state_dim)?,
            read_norm: norm(&own.read.norm, state_dim)?,
            recurrence: Recurrence {
                key_heads: 1,
                value_heads: width,
                key_dim: state_dim,
                value_dim: 1,
                pairing: HeadPairing::Grouped,
                rule: RecurrenceRule::StateSpace {
                    limits: [0.0, f32::INFINITY],
                    skip: weights.vector(backend, &own.skip, width)?,
                },
                rates_per_head: state_dim,
                decay_rate: backend.vector(rates)?,
                steps_per_head: 1,
                // The projection of the steps adds it.
                decay_bias: backend.vector(vec![0.0; width])?,
            },
            output: matrix(&own.output, width, hidden)?,
        })
    }

    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut LayerSequences<'_, B>,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let [gate, input] = backend.project([&self.gate, &self.input], x)?;
        let input = backend.convolve(&self.convolution, &input, sequences)?;
        let input = backend.map(input, Map::Activate(Activation::Silu))?;
        let [step, write, read] = backend.project([&self.step_down, &self.write, &self.read], &input)?;
        let normed = |norm: &Option<NormOf<B>>, x: B::Act| match norm {
            Some(norm) => backend.norm(norm, &x),
            None => Ok(x),
        };
        let (write, read) = (normed(&self.write_norm, write)?, normed(&self.read_norm, read)?);
        let [step] = backend.project([&self.step_up], &normed(&self.step_norm, step)?)?;
        let inputs = RecurrenceInputs { query: &read, key: &write, value: &input, beta: None, decay: Some(&step) };
        let mixed = backend.recur(&self.recurrence, inputs, sequences)?;
        let [out] = backend.project([&self.output], &backend.map(mixed, Map::Silu(&gate))?)?;
        Ok(out)
    }
}
