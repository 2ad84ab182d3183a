//! The learned residual beside a mixer, see [`architectures::LearnedResidual`].

use anyhow::Result;

use super::Loader;
use crate::backend::{Backend, Map, NormOf};

/// `scale · (x + h + norm(up(down(h))))`.
#[derive(Debug)]
pub(crate) struct LearnedResidual<B: Backend> {
    down: B::Matrix,
    up: B::Matrix,
    norm: NormOf<B>,
    scale: f32,
}

impl<B: Backend> LearnedResidual<B> {
    pub(crate) fn load(loader: &Loader<'_, B>, own: &architectures::LearnedResidual) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let rank = own.rank as usize;
        Ok(Self {
            down: weights.matrix(backend, &own.down, hidden, rank, None)?,
            up: weights.matrix(backend, &own.up, rank, hidden, None)?,
            norm: weights.norm(backend, &own.norm, hidden)?,
            scale: own.scale as f32,
        })
    }

    /// Computes `h + norm(up(down(h)))` of a mixer's input.
    pub(crate) fn forward(&self, backend: &B, h: &B::Act) -> Result<B::Act> {
        let [low] = backend.project([&self.down], h)?;
        let [made] = backend.project([&self.up], &low)?;
        backend.map(backend.norm(&self.norm, &made)?, Map::Add(h, 1.0))
    }

    /// Adds it to the stream behind the mixer.
    pub(crate) fn add(&self, backend: &B, x: B::Act, learned: &B::Act) -> Result<B::Act> {
        backend.map(backend.map(x, Map::Add(learned, 1.0))?, Map::Scale(self.scale))
    }
}
