//! A feed-forward network without a gate.

use anyhow::Result;
use architectures::Activation;
use kernels::elementwise;

use super::Loader;
use crate::backend::{Backend, Map};

/// `down(act(up(x)))`.
#[derive(Debug)]
pub(crate) struct Plain<B: Backend> {
    up: B::Matrix,
    down: B::Matrix,
    activation: Activation,
    /// The factors of xIELU for positive and for negative numbers, if it is the activation.
    curve: Option<[f32; 2]>,
}

impl<B: Backend> Plain<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::Plain) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let width = own.width as usize;
        Ok(Self {
            up: weights.matrix(backend, &own.up, hidden, width, None)?,
            down: weights.matrix(backend, &own.down, width, hidden, None)?,
            activation: own.activation,
            curve: own.curve.as_ref().map(|curve| factors(loader, curve)).transpose()?,
        })
    }

    pub(super) fn forward(&self, backend: &B, x: &B::Act) -> Result<B::Act> {
        let [wide] = backend.project([&self.up], x)?;
        let map = match self.curve {
            Some([positive, negative]) => Map::Xielu { positive, negative },
            None => Map::Activate(self.activation),
        };
        let [out] = backend.project([&self.down], &backend.map(wide, map)?)?;
        Ok(out)
    }
}

/// Returns the factors of xIELU, see [`architectures::Xielu`].
fn factors<B: Backend>(loader: &Loader<'_, B>, curve: &architectures::Xielu) -> Result<[f32; 2]> {
    let softplus = |tensor| -> Result<f32> {
        Ok(elementwise::softplus(loader.weights.numbers(tensor, &[1])?.first().copied().unwrap_or_default()))
    };
    Ok([softplus(&curve.positive)?, 0.5 + softplus(&curve.negative)?])
}
