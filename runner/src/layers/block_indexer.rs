//! The indexer that chooses blocks of positions, see [`architectures::BlockIndexer`].

use anyhow::{Context, Result};
use architectures::BlockRule;

use super::{Loader, MixerPlace, Pass};
use crate::backend::{Backend, BlockChoice, ChosenPositions, Convolution, HeadPart, NormOf, StageSequences};

/// An indexer.
#[derive(Debug)]
pub(super) struct BlockIndexer<B: Backend> {
    query: B::Matrix,
    key: B::Matrix,
    query_norm: NormOf<B>,
    key_norm: NormOf<B>,
    /// The mean of the last keys.
    mean: Option<Convolution<B>>,
    /// The part of a head to which RoPE is applied, and the indexes of the angles of queries and of
    /// keys.
    rotated: Option<(HeadPart, [usize; 2])>,
    heads: usize,
    head_dim: usize,
    block: usize,
    count: usize,
    rule: BlockRule,
}

impl<B: Backend> BlockIndexer<B> {
    pub(super) fn load(
        loader: &Loader<'_, B>,
        attention: &architectures::Attention,
        own: &architectures::BlockIndexer,
    ) -> Result<Self> {
        let Loader { backend, weights, hidden, angles, .. } = *loader;
        let [heads, head_dim, block, count] =
            [own.heads, own.head_dim, own.block, own.count].map(|number| number as usize);
        let mean = || -> Result<Convolution<B>> {
            let weight = backend.vector(vec![1.0 / block as f32; head_dim * block])?;
            Ok(Convolution { weight, bias: None, kernel: block, at: 0 })
        };
        let rotated = attention.rope.as_ref().zip(angles.keys.zip(angles.indexer)).map(|(rope, (queries, keys))| {
            let count = rope.rotated(attention.head_dim) as usize;
            (HeadPart { width: head_dim, first: 0, count }, [queries, keys])
        });
        Ok(Self {
            query: weights.matrix(backend, &own.query, hidden, heads * head_dim, None)?,
            key: weights.matrix(backend, &own.key, hidden, head_dim, None)?,
            query_norm: weights.norm(backend, &own.query_norm, head_dim)?,
            key_norm: weights.norm(backend, &own.key_norm, head_dim)?,
            mean: (own.rule == BlockRule::Mean).then(mean).transpose()?,
            rotated,
            heads,
            head_dim,
            block,
            count,
            rule: own.rule,
        })
    }

    /// Chooses the positions to which the tokens of each sequence attend; `x` is the normalized
    /// stream.
    pub(super) fn choose(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut StageSequences<'_, B>,
        place: MixerPlace,
    ) -> Result<Vec<Option<ChosenPositions>>> {
        let backend = pass.backend;
        let states = place.indexer.context("invariant: an indexer has states")?;
        let [queries, mut keys] = backend.project([&self.query, &self.key], x)?;
        if let Some(mean) = &self.mean {
            let states = states.means.context("invariant: an indexer has past keys")?;
            keys = backend.convolve(mean, &keys, &mut sequences.layer(place.layer, states))?;
        }
        let mut queries = backend.norm(&self.query_norm, &queries)?;
        keys = backend.norm(&self.key_norm, &keys)?;
        if let Some((part, [of_queries, of_keys])) = self.rotated {
            queries = backend.rotate(queries, part, &pass.angles[of_queries])?;
            keys = backend.rotate(keys, part, &pass.angles[of_keys])?;
        }
        let choice = BlockChoice {
            queries: &queries,
            keys: &keys,
            heads: self.heads,
            head_dim: self.head_dim,
            block: self.block,
            count: self.count,
            rule: self.rule,
        };
        backend.choose_blocks(&choice, &mut sequences.layer(place.layer, states.keys))
    }
}
