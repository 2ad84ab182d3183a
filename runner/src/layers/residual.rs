//! Residual connections: how the outputs of a layer's parts are added to the stream.

use anyhow::Result;
use architectures::Norm;

use super::Loader;
use crate::backend::{Backend, Map, NormOf};

/// `sum(x + scale · after(part(before(x))))`.
#[derive(Debug)]
pub(crate) struct Residual<B: Backend> {
    before: Option<NormOf<B>>,
    after: Option<NormOf<B>>,
    scale: f32,
    sum: Option<NormOf<B>>,
}

impl<B: Backend> Residual<B> {
    pub(crate) fn load(loader: &Loader<'_, B>, own: &architectures::Residual) -> Result<Self> {
        let load = |norm: &Option<Norm>| {
            norm.as_ref().map(|norm| loader.weights.norm(loader.backend, norm, loader.hidden)).transpose()
        };
        let (before, after, sum) = (load(&own.before)?, load(&own.after)?, load(&own.sum)?);
        Ok(Self { before, after, scale: own.scale.unwrap_or(1.0) as f32, sum })
    }

    /// Computes the output of a part, before it is added to the stream.
    pub(crate) fn made(&self, backend: &B, x: &B::Act, part: impl FnOnce(&B::Act) -> Result<B::Act>) -> Result<B::Act> {
        let made = match &self.before {
            Some(norm) => part(&backend.norm(norm, x)?)?,
            None => part(x)?,
        };
        match &self.after {
            Some(norm) => backend.norm(norm, &made),
            None => Ok(made),
        }
    }

    /// Adds the output of a part to the stream. Without an output, the stream stays the same.
    pub(crate) fn add(&self, backend: &B, x: B::Act, made: Option<&B::Act>) -> Result<B::Act> {
        let Some(made) = made else { return Ok(x) };
        let x = backend.map(x, Map::Add(made, self.scale))?;
        match &self.sum {
            Some(norm) => backend.norm(norm, &x),
            None => Ok(x),
        }
    }
}
