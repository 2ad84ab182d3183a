//! Feed-forward networks.

use anyhow::Result;
use architectures::Activation;

use super::experts::Experts;
use super::{Loader, Pass};
use crate::backend::{Backend, Map};

/// A feed-forward network.
#[derive(Debug)]
pub(crate) enum Ffn<B: Backend> {
    Gated(Gated<B>),
    Plain { up: B::Matrix, down: B::Matrix, activation: Activation },
    Experts(Box<Experts<B>>),
}

/// `down(act(gate(x)) · up(x))`.
#[derive(Debug)]
pub(crate) struct Gated<B: Backend> {
    pub(super) gate: B::Matrix,
    pub(super) up: B::Matrix,
    pub(super) down: B::Matrix,
    pub(super) activation: Activation,
}

impl<B: Backend> Ffn<B> {
    pub(crate) fn load(loader: &Loader<'_, B>, ffn: &architectures::Ffn) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        Ok(match ffn {
            architectures::Ffn::Gated(own) => Self::Gated(Gated::load(loader, own)?),
            architectures::Ffn::Plain(own) => {
                let width = own.width as usize;
                Self::Plain {
                    up: weights.matrix(backend, &own.up, hidden, width, None)?,
                    down: weights.matrix(backend, &own.down, width, hidden, None)?,
                    activation: own.activation,
                }
            }
            architectures::Ffn::Experts(own) => Self::Experts(Box::new(Experts::load(loader, own)?)),
        })
    }

    pub(crate) fn forward(&self, pass: &Pass<'_, B>, x: &B::Act, tokens: usize) -> Result<B::Act> {
        match self {
            Self::Gated(own) => own.forward(pass.backend, x),
            Self::Plain { up, down, activation } => {
                let [wide] = pass.backend.project([up], x)?;
                let [out] = pass.backend.project([down], &pass.backend.map(wide, Map::Activate(*activation))?)?;
                Ok(out)
            }
            Self::Experts(own) => own.forward(pass.backend, x, tokens),
        }
    }
}

impl<B: Backend> Gated<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::Gated) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let width = own.width as usize;
        Ok(Self {
            gate: weights.matrix(backend, &own.gate, hidden, width, None)?,
            up: weights.matrix(backend, &own.up, hidden, width, None)?,
            down: weights.matrix(backend, &own.down, width, hidden, None)?,
            activation: own.activation,
        })
    }

    pub(super) fn forward(&self, backend: &B, x: &B::Act) -> Result<B::Act> {
        let [gate, up] = backend.project([&self.gate, &self.up], x)?;
        let [out] = backend.project([&self.down], &backend.map(gate, Map::Gate(self.activation, &up))?)?;
        Ok(out)
    }
}
