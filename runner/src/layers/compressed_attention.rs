//! Attention to a window of positions and to compressed entries, see
//! [`architectures::CompressedAttention`].

use anyhow::{Context, Result};

use super::compressor::Compressor;
use super::latent::Heads;
use super::{Loader, MixerPlace, Pass};
use crate::backend::{
    Attend, AttendEntries, Backend, ChosenPositions, EntryChoice, HeadPart, NormOf, StageSequences, Values,
};

/// Attention with one key head, whose keys are the values too.
#[derive(Debug)]
pub(crate) struct CompressedAttention<B: Backend> {
    query: LowRankQuery<B>,
    query_norm: NormOf<B>,
    key: B::Matrix,
    key_norm: NormOf<B>,
    sinks: B::Vector,
    /// The projection of each group of heads.
    groups: Heads<B>,
    output: B::Matrix,
    /// The part of a head to which RoPE is applied.
    rotated: HeadPart,
    /// Indexes of the angles of queries and keys, and of outputs.
    angles: [usize; 2],
    heads: usize,
    scale: f32,
    window: usize,
    entries: Option<Compressor<B>>,
    indexer: Option<Indexer<B>>,
}

/// The projection of queries.
#[derive(Debug)]
struct LowRankQuery<B: Backend> {
    down: B::Matrix,
    norm: NormOf<B>,
    up: B::Matrix,
}

/// Chooses entries, see [`architectures::EntryIndexer`].
#[derive(Debug)]
struct Indexer<B: Backend> {
    query: B::Matrix,
    weights: B::Matrix,
    rotated: HeadPart,
    heads: usize,
    count: usize,
    entries: Compressor<B>,
}

impl<B: Backend> Indexer<B> {
    fn load(loader: &Loader<'_, B>, own: &architectures::EntryIndexer, [rank, rope_dim]: [usize; 2]) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let [heads, head_dim] = [own.heads, own.head_dim].map(|size| size as usize);
        Ok(Self {
            query: weights.matrix(backend, &own.query, rank, heads * head_dim, None)?,
            weights: weights.matrix(backend, &own.weights, hidden, heads, None)?,
            rotated: HeadPart { width: head_dim, first: head_dim - rope_dim, count: rope_dim },
            heads,
            count: own.count as usize,
            entries: Compressor::load(loader, &own.compression, [head_dim, rope_dim])?,
        })
    }

    /// Keeps the entries of the normalized stream `x`, then chooses entries for the tokens of each
    /// sequence by the low-rank row of queries.
    fn choose(
        &self,
        pass: &Pass<'_, B>,
        [x, low]: [&B::Act; 2],
        sequences: &mut StageSequences<'_, B>,
        (place, angles): (MixerPlace, usize),
    ) -> Result<Vec<Option<ChosenPositions>>> {
        let backend = pass.backend;
        let states = place.entries[1].context("invariant: an indexer has entries")?;
        self.entries.keep(pass, x, sequences, (place.layer, states))?;
        let [queries] = backend.project([&self.query], low)?;
        let [weights] = backend.project([&self.weights], x)?;
        let choice = EntryChoice {
            queries: &backend.rotate(queries, self.rotated, &pass.angles[angles])?,
            weights: &weights,
            heads: self.heads,
            head_dim: self.rotated.width,
            count: self.count,
            every: self.entries.every(),
        };
        backend.choose_entries(&choice, &mut sequences.layer(place.layer, states.entries))
    }
}

impl<B: Backend> CompressedAttention<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::CompressedAttention) -> Result<Self> {
        let Loader { backend, weights, hidden, angles, .. } = *loader;
        let [heads, head_dim, rope_dim, groups, rank, query_rank] =
            [own.heads, own.head_dim, own.rope_dim, own.groups, own.rank, own.query.rank].map(|size| size as usize);
        let matrix = |projection: &architectures::Projection, input, output| {
            weights.matrix(backend, projection, input, output, None)
        };
        let group = |index| {
            weights.matrix_apart(backend, &own.group_outputs.projection(index), heads / groups * head_dim, rank)
        };
        Ok(Self {
            query: LowRankQuery {
                down: matrix(&own.query.down, hidden, query_rank)?,
                norm: weights.norm(backend, &own.query.norm, query_rank)?,
                up: matrix(&own.query.up, query_rank, heads * head_dim)?,
            },
            query_norm: weights.norm(backend, &own.query_norm, head_dim)?,
            key: matrix(&own.key, hidden, head_dim)?,
            key_norm: weights.norm(backend, &own.key_norm, head_dim)?,
            sinks: weights.vector(backend, &own.sinks, heads)?,
            groups: Heads::new((0..own.groups).map(group).collect::<Result<_>>()?)?,
            output: matrix(&own.output, groups * rank, hidden)?,
            rotated: HeadPart { width: head_dim, first: head_dim - rope_dim, count: rope_dim },
            angles: [
                angles.keys.context("invariant: queries have rotary angles")?,
                angles.outputs.context("invariant: outputs have rotary angles")?,
            ],
            heads,
            scale: own.scale as f32,
            window: own.window as usize,
            entries: own
                .entries
                .as_ref()
                .map(|entries| Compressor::load(loader, &entries.compression, [head_dim, rope_dim]))
                .transpose()?,
            indexer: own.indexer().map(|own| Indexer::load(loader, own, [query_rank, rope_dim])).transpose()?,
        })
    }

    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut StageSequences<'_, B>,
        place: MixerPlace,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let [angles, of_outputs] = self.angles;
        let [low, key] = backend.project([&self.query.down, &self.key], x)?;
        let low = backend.norm(&self.query.norm, &low)?;
        let chosen = match &self.indexer {
            Some(indexer) => indexer.choose(pass, [x, &low], sequences, (place, angles))?,
            None => Vec::new(),
        };
        let query = {
            // The queries before their norm are large, so they are dropped here.
            let [query] = backend.project([&self.query.up], &low)?;
            backend.rotate(backend.norm(&self.query_norm, &query)?, self.rotated, &pass.angles[angles])?
        };
        let key = backend.rotate(backend.norm(&self.key_norm, &key)?, self.rotated, &pass.angles[angles])?;
        let mixed = if let Some(entries) = &self.entries {
            let states = place.entries[0].context("invariant: the attention has entries")?;
            entries.keep(pass, x, sequences, (place.layer, states))?;
            let (mut own, states) = sequences.layer_beside(place.layer, [place.states, states.entries])?;
            let entries = AttendEntries { states, every: entries.every(), chosen: &chosen };
            backend.attend(&self.attend(Some(entries)), [&query, &key, &key], &mut own)?
        } else {
            let own = &mut sequences.layer(place.layer, place.states);
            backend.attend(&self.attend(None), [&query, &key, &key], own)?
        };
        let mixed = backend.rotate(mixed, self.rotated, &pass.angles[of_outputs])?;
        let [out] = backend.project([&self.output], &self.groups.project(backend, false, &mixed)?)?;
        Ok(out)
    }

    fn attend<'a>(&'a self, entries: Option<AttendEntries<'a, B>>) -> Attend<'a, B> {
        let width = self.rotated.width;
        Attend {
            heads: self.heads,
            kv_heads: 1,
            key_dim: width,
            value_dim: width,
            values: Values::InKeys,
            scale: self.scale,
            soft_cap: None,
            window: Some(self.window),
            chunk: None,
            causal: true,
            has_causal_pictures: false,
            reads_only: false,
            sinks: Some(&self.sinks),
            position_bias: None,
            indexer: None,
            chosen: None,
            entries,
        }
    }
}
