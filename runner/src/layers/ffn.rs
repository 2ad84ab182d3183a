//! Feed-forward networks.

use anyhow::Result;
use architectures::Activation;

use super::experts::Experts;
use super::gated::Gated;
use super::{Loader, Pass};
use crate::backend::{Backend, Map};

/// A feed-forward network.
#[derive(Debug)]
pub(crate) enum Ffn<B: Backend> {
    Gated(Gated<B>),
    Plain { up: B::Matrix, down: B::Matrix, activation: Activation },
    Experts(Box<Experts<B>>),
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
