//! Streams that all parts of layers read and write, see [`architectures::ConnectedStreams`].

use anyhow::Result;
use architectures::Activation;

use super::stream_of;
use crate::backend::{Activations, Backend, Map, NormOf};
use crate::layers::Loader;
use crate::weights::Weights;

/// A mix of streams, see [`architectures::StreamMix`].
#[derive(Debug)]
pub(crate) struct StreamMix<B: Backend> {
    norm: NormOf<B>,
    down: B::Matrix,
    up: B::Matrix,
    pub(super) count: usize,
    hidden: usize,
}

/// The connection of a part of a layer.
#[derive(Debug)]
pub(crate) struct StreamConnection<B: Backend> {
    mix: StreamMix<B>,
    inject: B::Matrix,
}

impl<B: Backend> StreamMix<B> {
    pub(super) fn load(
        backend: &B,
        weights: &Weights,
        own: &architectures::StreamMix,
        [count, hidden]: [usize; 2],
    ) -> Result<Self> {
        let (rank, width) = (own.rank as usize, count * hidden);
        Ok(Self {
            norm: weights.norm_of_heads(backend, &own.norm, [count, hidden])?,
            down: weights.matrix(backend, &own.down, width, rank, None)?,
            up: weights.matrix(backend, &own.up, rank, width, None)?,
            count,
            hidden,
        })
    }

    /// Returns the normalized streams.
    pub(super) fn normed(&self, backend: &B, streams: &B::Act) -> Result<B::Act> {
        backend.norm(&self.norm, streams)
    }

    /// Returns the mix of normalized streams.
    pub(super) fn mixed(&self, backend: &B, normed: &B::Act) -> Result<B::Act> {
        let share = 1.0 / self.count as f32;
        let [low] = backend.project([&self.down], normed)?;
        let low = backend.map(backend.map(low, Map::Scale(share))?, Map::Activate(Activation::Silu))?;
        let [gate] = backend.project([&self.up], &low)?;
        let stream = |index| {
            let part = |x| stream_of(backend, x, [self.count, self.hidden], index);
            backend.map(part(normed)?, Map::Sigmoid(&part(&gate)?))
        };
        let mut sum = stream(0)?;
        for index in 1..self.count {
            sum = backend.map(sum, Map::Add(&stream(index)?, 1.0))?;
        }
        backend.map(sum, Map::Scale(share))
    }
}

impl<B: Backend> StreamConnection<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::StreamConnection, count: usize) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        Ok(Self {
            mix: StreamMix::load(backend, weights, &own.mix, [count, hidden])?,
            inject: weights.matrix(backend, &own.inject, count * hidden, count, None)?,
        })
    }

    /// Computes a part of a layer: returns the streams with its output.
    pub(super) fn around(
        &self,
        backend: &B,
        streams: B::Act,
        part: impl FnOnce(&B::Act) -> Result<Option<B::Act>>,
    ) -> Result<B::Act> {
        let normed = self.mix.normed(backend, &streams)?;
        let Some(made) = part(&self.mix.mixed(backend, &normed)?)? else { return Ok(streams) };
        let [gate] = backend.project([&self.inject], &normed)?;
        let gate = backend.map(gate, Map::Scale(1.0 / self.mix.count as f32))?;
        let injected = backend.map(copies(backend, &made, self.mix.count)?, Map::Sigmoid(&gate))?;
        backend.map(streams, Map::Add(&injected, 2.0))
    }
}

/// Returns each row several times, side by side.
pub(in crate::layers) fn copies<B: Backend>(backend: &B, x: &B::Act, count: usize) -> Result<B::Act> {
    let ones = backend.rows(x.count(), count, |ones| {
        ones.fill(1.0);
        Ok(())
    })?;
    backend.mix(x, &ones, 1)
}
