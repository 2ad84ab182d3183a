//! Streams that all parts of layers read, write and mix, see [`architectures::BalancedStreams`].

use anyhow::Result;

use crate::backend::{Backend, HeadPart, NormOf, ShareFactors, StreamShares};
use crate::layers::Loader;
use crate::weights::Weights;

/// The numbers of streams, see [`architectures::StreamNumbers`], and the shares made of them.
#[derive(Debug)]
pub(crate) struct BalancedConnection<B: Backend> {
    norm: NormOf<B>,
    projection: B::Matrix,
    shares: StreamShares<B>,
}

impl<B: Backend> BalancedConnection<B> {
    /// Loads the connection of a part of a layer.
    pub(super) fn of_part(
        loader: &Loader<'_, B>,
        own: &architectures::StreamNumbers,
        all: &architectures::BalancedStreams,
    ) -> Result<Self> {
        let factors = loader.weights.numbers(&own.factors, &[3])?;
        let factors = ShareFactors::ReadWriteMix([factors[0], factors[1], factors[2]]);
        Self::with(loader.backend, loader.weights, own, all, (loader.hidden, factors))
    }

    /// Loads the connection of the last norm, which only reads the streams.
    pub(super) fn of_norm(
        backend: &B,
        weights: &Weights,
        all: &architectures::BalancedStreams,
        hidden: usize,
    ) -> Result<Self> {
        let factors = ShareFactors::Read(weights.numbers(&all.leave.factors, &[1])?[0]);
        Self::with(backend, weights, &all.leave, all, (hidden, factors))
    }

    fn with(
        backend: &B,
        weights: &Weights,
        own: &architectures::StreamNumbers,
        all: &architectures::BalancedStreams,
        (hidden, factors): (usize, ShareFactors),
    ) -> Result<Self> {
        let count = all.count as usize;
        let numbers = factors.numbers(count);
        Ok(Self {
            norm: weights.norm(backend, &own.norm, count * hidden)?,
            projection: weights.matrix(backend, &own.projection, count * hidden, numbers, None)?,
            shares: StreamShares {
                count,
                factors,
                bias: weights.vector(backend, &own.bias, numbers)?,
                epsilon: all.epsilon as f32,
                iterations: all.iterations as usize,
            },
        })
    }

    /// Returns the number of streams.
    pub(super) fn count(&self) -> usize {
        self.shares.count
    }

    /// Returns the input of the part, and all shares.
    pub(super) fn read(&self, backend: &B, streams: &B::Act) -> Result<(B::Act, B::Act)> {
        let [numbers] = backend.project([&self.projection], &backend.norm(&self.norm, streams)?)?;
        let shares = backend.stream_shares(&self.shares, &numbers)?;
        let reads = self.part(backend, &shares, 0, self.count())?;
        Ok((backend.mix(streams, &reads, self.count())?, shares))
    }

    /// Computes a part of a layer: returns the streams behind it.
    pub(super) fn around(
        &self,
        backend: &B,
        streams: B::Act,
        part: impl FnOnce(&B::Act) -> Result<Option<B::Act>>,
    ) -> Result<B::Act> {
        let count = self.count();
        let (input, shares) = self.read(backend, &streams)?;
        let Some(made) = part(&input)? else { return Ok(streams) };
        let shares = self.part(backend, &shares, count, count * (count + 1))?;
        backend.mix(&backend.join(&streams, &made, 1)?, &shares, count + 1)
    }

    fn part(&self, backend: &B, shares: &B::Act, first: usize, count: usize) -> Result<B::Act> {
        backend.part(shares, HeadPart { width: self.shares.made(), first, count })
    }
}
