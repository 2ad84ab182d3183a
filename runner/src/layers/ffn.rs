//! Feed-forward networks.

use anyhow::{Context, Result};

use super::experts::Experts;
use super::gated::Gated;
use super::plain::Plain;
use super::{LayerTokens, Loader, Pass};
use crate::backend::{Backend, Map, NormOf};

/// A feed-forward network.
#[derive(Debug)]
pub(crate) enum Ffn<B: Backend> {
    Gated(Gated<B>),
    Plain(Plain<B>),
    Experts(Box<Experts<B>>),
    Sum(Vec<Branch<B>>),
}

/// A network of a sum: `after(ffn(before(x)))`.
#[derive(Debug)]
pub(crate) struct Branch<B: Backend> {
    before: Option<NormOf<B>>,
    ffn: Ffn<B>,
    after: Option<NormOf<B>>,
}

impl<B: Backend> Branch<B> {
    fn load(loader: &Loader<'_, B>, own: &architectures::Branch) -> Result<Self> {
        let norm = |norm: &Option<architectures::Norm>| {
            norm.as_ref().map(|norm| loader.weights.norm(loader.backend, norm, loader.hidden)).transpose()
        };
        let ffn = Ffn::load(loader, &own.ffn)?.context("invariant: a sum has networks")?;
        Ok(Self { before: norm(&own.before)?, ffn, after: norm(&own.after)? })
    }

    fn forward(&self, pass: &Pass<'_, B>, x: &B::Act, tokens: &LayerTokens<'_, B>) -> Result<B::Act> {
        let made = match &self.before {
            Some(norm) => self.ffn.forward(pass, &pass.backend.norm(norm, x)?, tokens)?,
            None => self.ffn.forward(pass, x, tokens)?,
        };
        match &self.after {
            Some(norm) => pass.backend.norm(norm, &made),
            None => Ok(made),
        }
    }
}

impl<B: Backend> Ffn<B> {
    /// Loads a network; `None` if the layer has none.
    pub(crate) fn load(loader: &Loader<'_, B>, ffn: &architectures::Ffn) -> Result<Option<Self>> {
        Ok(Some(match ffn {
            architectures::Ffn::Gated(own) => Self::Gated(Gated::load(loader, own)?),
            architectures::Ffn::Plain(own) => Self::Plain(Plain::load(loader, own)?),
            architectures::Ffn::Experts(own) => Self::Experts(Box::new(Experts::load(loader, own)?)),
            architectures::Ffn::Sum(own) => {
                Self::Sum(own.iter().map(|branch| Branch::load(loader, branch)).collect::<Result<_>>()?)
            }
            architectures::Ffn::None => return Ok(None),
        }))
    }

    pub(crate) fn forward(&self, pass: &Pass<'_, B>, x: &B::Act, tokens: &LayerTokens<'_, B>) -> Result<B::Act> {
        match self {
            Self::Gated(own) => own.forward(pass.backend, x),
            Self::Plain(own) => own.forward(pass.backend, x),
            Self::Experts(own) => own.forward(pass.backend, x, tokens),
            Self::Sum(branches) => {
                let (first, rest) = branches.split_first().context("invariant: a sum has networks")?;
                let mut sum = first.forward(pass, x, tokens)?;
                for branch in rest {
                    let made = branch.forward(pass, x, tokens)?;
                    sum = pass.backend.map(sum, Map::Add(&made, 1.0))?;
                }
                Ok(sum)
            }
        }
    }
}
