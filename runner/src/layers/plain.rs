//! A feed-forward network without a gate.

use anyhow::Result;
use architectures::Activation;

use super::Loader;
use crate::backend::{Backend, Map};

/// `down(act(up(x)))`.
#[derive(Debug)]
pub(crate) struct Plain<B: Backend> {
    up: B::Matrix,
    down: B::Matrix,
    activation: Activation,
}

impl<B: Backend> Plain<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::Plain) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let width = own.width as usize;
        Ok(Self {
            up: weights.matrix(backend, &own.up, hidden, width, None)?,
            down: weights.matrix(backend, &own.down, width, hidden, None)?,
            activation: own.activation,
        })
    }

    pub(super) fn forward(&self, backend: &B, x: &B::Act) -> Result<B::Act> {
        let [wide] = backend.project([&self.up], x)?;
        let [out] = backend.project([&self.down], &backend.map(wide, Map::Activate(self.activation))?)?;
        Ok(out)
    }
}
