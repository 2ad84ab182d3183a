//! Linear attention with a constant decay, see [`architectures::LinearAttention`].

use anyhow::Result;
use architectures::{Activation, HeadPairing};

use super::{Loader, Pass};
use crate::backend::{Backend, LayerSequences, Map, NormOf, Recurrence, RecurrenceInputs, RecurrenceRule};

/// Linear attention.
#[derive(Debug)]
pub(crate) struct LinearAttention<B: Backend> {
    query: B::Matrix,
    key: B::Matrix,
    value: B::Matrix,
    activation: Activation,
    /// A state space model whose steps are 1.
    recurrence: Recurrence<B>,
    norm: NormOf<B>,
    gate: B::Matrix,
    output: B::Matrix,
}

impl<B: Backend> LinearAttention<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::LinearAttention) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let [heads, head_dim] = [own.heads, own.head_dim].map(|size| size as usize);
        let width = heads * head_dim;
        let matrix = |projection| weights.matrix(backend, projection, hidden, width, None);
        let rate = |head: u64| own.decay_scale * (-8.0 * head as f64 / own.heads as f64).exp2();
        Ok(Self {
            query: matrix(&own.query)?,
            key: matrix(&own.key)?,
            value: matrix(&own.value)?,
            activation: own.activation,
            recurrence: Recurrence {
                key_heads: heads,
                value_heads: heads,
                key_dim: head_dim,
                value_dim: head_dim,
                pairing: HeadPairing::Grouped,
                rule: RecurrenceRule::StateSpace {
                    limits: [0.0, f32::INFINITY],
                    skip: backend.vector(vec![0.0; heads])?,
                },
                rates_per_head: 1,
                decay_rate: backend.vector((1..=own.heads).map(|head| rate(head) as f32).collect())?,
                steps_per_head: 1,
                decay_bias: backend.vector(vec![0.0; heads])?,
            },
            norm: weights.norm(backend, &own.norm, width)?,
            gate: matrix(&own.gate)?,
            output: weights.matrix(backend, &own.output, width, hidden, None)?,
        })
    }

    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut LayerSequences<'_, B>,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let [query, key, value, gate] = backend.project([&self.query, &self.key, &self.value, &self.gate], x)?;
        let active = |x: B::Act| backend.map(x, Map::Activate(self.activation));
        let (query, key, value) = (active(query)?, active(key)?, active(value)?);
        let inputs = RecurrenceInputs { query: &query, key: &key, value: &value, beta: None, decay: None };
        let mixed = backend.recur(&self.recurrence, inputs, sequences)?;
        let gated = backend.map(backend.norm(&self.norm, &mixed)?, Map::Sigmoid(&gate))?;
        let [out] = backend.project([&self.output], &gated)?;
        Ok(out)
    }
}
