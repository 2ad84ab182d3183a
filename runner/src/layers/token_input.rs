//! The part of a layer that reads the layer's own embedding of each token, see
//! [`architectures::TokenInput`].

use anyhow::Result;
use architectures::Activation;

use super::Loader;
use crate::backend::{Backend, Map, NormOf};

/// `norm(projection(act(gate(x)) · e))`.
#[derive(Debug)]
pub(crate) struct TokenInput<B: Backend> {
    gate: B::Matrix,
    activation: Activation,
    projection: B::Matrix,
    norm: NormOf<B>,
}

impl<B: Backend> TokenInput<B> {
    pub(crate) fn load(loader: &Loader<'_, B>, own: &architectures::TokenInput) -> Result<Self> {
        let Loader { backend, weights, hidden, token_input, .. } = *loader;
        Ok(Self {
            gate: weights.matrix(backend, &own.gate, hidden, token_input, None)?,
            activation: own.activation,
            projection: weights.matrix(backend, &own.projection, token_input, hidden, None)?,
            norm: weights.norm(backend, &own.norm, hidden)?,
        })
    }

    /// Computes the output of the part; `own` is the layer's embedding of the tokens.
    pub(crate) fn forward(&self, backend: &B, x: &B::Act, own: &B::Act) -> Result<B::Act> {
        let [gate] = backend.project([&self.gate], x)?;
        let gated = backend.map(gate, Map::Gate(self.activation, own))?;
        let [made] = backend.project([&self.projection], &gated)?;
        backend.norm(&self.norm, &made)
    }
}
