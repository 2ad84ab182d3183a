//! The indexer of latent attention, see [`architectures::Indexer`].

use anyhow::{Context, Result};
use architectures::LatentQuery;

use super::{Loader, Pass};
use crate::backend::{Backend, HeadPart, IndexQueries, NormOf};

/// An indexer.
#[derive(Debug)]
pub(super) struct Indexer<B: Backend> {
    query: B::Matrix,
    key: B::Matrix,
    key_norm: NormOf<B>,
    weights: B::Matrix,
    angles: usize,
    heads: usize,
    /// The part of a head to which RoPE is applied.
    rotated: HeadPart,
    count: usize,
}

/// Queries, weights and keys of the tokens of a pass.
#[derive(Debug)]
pub(super) struct Indexed<B: Backend> {
    /// `[tokens, heads · head_dim]`.
    queries: B::Act,
    /// `[tokens, heads]`.
    weights: B::Act,
    /// `[tokens, key_dim]`.
    pub(super) key: B::Act,
    pub(super) key_dim: usize,
}

impl<B: Backend> Indexer<B> {
    pub(super) fn load(
        loader: &Loader<'_, B>,
        latent: &architectures::Latent,
        own: &architectures::Indexer,
    ) -> Result<Self> {
        let Loader { backend, weights, hidden, angles, .. } = *loader;
        let [heads, head_dim] = [own.heads, own.head_dim].map(|size| size as usize);
        let LatentQuery::LowRank(query) = &latent.query else {
            anyhow::bail!("invariant: an indexer reads a low-rank row of queries")
        };
        Ok(Self {
            query: weights.matrix(backend, &own.query, query.rank as usize, heads * head_dim, None)?,
            key: weights.matrix(backend, &own.key, hidden, head_dim, None)?,
            key_norm: weights.norm(backend, &own.key_norm, head_dim)?,
            weights: weights.matrix(backend, &own.weights, hidden, heads, None)?,
            angles: angles.indexer.context("invariant: an indexer has rotary angles")?,
            heads,
            rotated: HeadPart { width: head_dim, first: 0, count: latent.rope_dim as usize },
            count: own.count as usize,
        })
    }

    /// Computes queries, their weights and the key of each token from the normalized stream `x` and
    /// the normalized low-rank row of queries.
    pub(super) fn forward(&self, pass: &Pass<'_, B>, x: &B::Act, low: &B::Act) -> Result<Indexed<B>> {
        let (backend, angles) = (pass.backend, &pass.angles[self.angles]);
        let [queries] = backend.project([&self.query], low)?;
        let [key, weights] = backend.project([&self.key, &self.weights], x)?;
        let key = backend.norm(&self.key_norm, &key)?;
        Ok(Indexed {
            queries: backend.rotate(queries, self.rotated, angles)?,
            weights,
            key: backend.rotate(key, self.rotated, angles)?,
            key_dim: self.rotated.width,
        })
    }

    /// Returns the part of attention's parameters that chooses positions.
    pub(super) fn queries<'a>(&self, indexed: &'a Indexed<B>) -> IndexQueries<'a, B> {
        let Indexed { queries, weights, .. } = indexed;
        IndexQueries { queries, weights, heads: self.heads, head_dim: self.rotated.width, count: self.count }
    }
}
