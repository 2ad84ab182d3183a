//! Multi-head latent attention: all heads attend to the same latent rows. Each head's own matrices
//! project its queries into the latent space, and its values out of it. So the keys and values of
//! heads are never computed.

use anyhow::{Result, ensure};
use architectures::LatentQuery;

use super::indexer::{Indexed, Indexer};
use super::{Loader, Pass};
use crate::backend::{Activations, Attend, Backend, HeadPart, LayerSequences, LowRank, Map, NormOf, Values};

/// Latent attention.
#[derive(Debug)]
pub(crate) struct Latent<B: Backend> {
    query: Query<B>,
    down: B::Matrix,
    norm: NormOf<B>,
    keys: Heads<B>,
    values: Heads<B>,
    output: B::Matrix,
    angles: usize,
    /// Index of the growth of queries among the angles.
    growth: Option<usize>,
    indexer: Option<Indexer<B>>,
    nope_dim: usize,
    rope_dim: usize,
    rank: usize,
    scale: f32,
}

#[derive(Debug)]
enum Query<B: Backend> {
    Plain(B::Matrix),
    LowRank { down: B::Matrix, norm: NormOf<B>, up: B::Matrix },
}

/// A matrix for each head, with the factors that adapters add to it.
#[derive(Debug)]
pub(super) struct Heads<B: Backend> {
    matrices: Vec<B::Matrix>,
    adapters: Vec<HeadFactors<B>>,
}

/// The factors of an adapter, for each head.
#[derive(Debug)]
struct HeadFactors<B: Backend> {
    down: Vec<B::Matrix>,
    up: Vec<B::Matrix>,
    scale: f32,
}

impl<B: Backend> Heads<B> {
    pub(super) fn new(heads: Vec<(B::Matrix, Vec<LowRank<B>>)>) -> Result<Self> {
        let (matrices, added): (Vec<_>, Vec<_>) = heads.into_iter().unzip();
        let count = added.first().map_or(0, Vec::len);
        let none = |own: &LowRank<B>| HeadFactors { down: Vec::new(), up: Vec::new(), scale: own.scale as f32 };
        let mut adapters: Vec<HeadFactors<B>> = added.iter().flatten().take(count).map(none).collect();
        for head in added {
            ensure!(
                head.len() == count,
                "adapters change only some heads of a layer's attention; all or none are supported"
            );
            for (own, all) in head.into_iter().zip(&mut adapters) {
                all.down.push(own.down);
                all.up.push(own.up);
            }
        }
        Ok(Self { matrices, adapters })
    }

    /// Multiplies each head of `x` by its matrix, or by the transpose of it.
    pub(super) fn project(&self, backend: &B, transposed: bool, x: &B::Act) -> Result<B::Act> {
        let heads = self.matrices.len();
        let by = |matrices: &[B::Matrix], x: &B::Act| -> Result<B::Act> {
            backend.project_heads(heads, |head| &matrices[head], transposed, x)
        };
        let mut out = by(&self.matrices, x)?;
        for HeadFactors { down, up, scale } in &self.adapters {
            let (first, second) = if transposed { (up, down) } else { (down, up) };
            out = backend.map(out, Map::Add(&by(second, &by(first, x)?)?, *scale))?;
        }
        Ok(out)
    }
}

impl<B: Backend> Latent<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::Latent) -> Result<Self> {
        let Loader { backend, weights, hidden, angles, .. } = *loader;
        let [heads, nope_dim, rope_dim, value_dim, rank] =
            [own.heads, own.nope_dim, own.rope_dim, own.value_dim, own.rank].map(|size| size as usize);
        let matrix = |projection: &architectures::Projection, input, output| {
            weights.matrix(backend, projection, input, output, None)
        };
        let queries = heads * (nope_dim + rope_dim);
        let query = match &own.query {
            LatentQuery::Plain(query) => Query::Plain(matrix(query, hidden, queries)?),
            LatentQuery::LowRank(own) => {
                let rank = own.rank as usize;
                Query::LowRank {
                    down: matrix(&own.down, hidden, rank)?,
                    norm: weights.norm(backend, &own.norm, rank)?,
                    up: matrix(&own.up, rank, queries)?,
                }
            }
        };
        let each = |matrices: &architectures::Matrices, output| {
            let one = |head| weights.matrix_apart(backend, &matrices.projection(head), rank, output);
            Heads::new((0..own.heads).map(one).collect::<Result<_>>()?)
        };
        Ok(Self {
            query,
            down: matrix(&own.down, hidden, rank + rope_dim)?,
            norm: weights.norm(backend, &own.norm, rank)?,
            keys: each(&own.keys, nope_dim)?,
            values: each(&own.values, value_dim)?,
            output: matrix(&own.output, heads * value_dim, hidden)?,
            angles: angles.keys.unwrap_or(0),
            growth: angles.growth,
            indexer: own.indexer.as_ref().map(|indexer| Indexer::load(loader, own, indexer)).transpose()?,
            nope_dim,
            rope_dim,
            rank,
            scale: own.scale as f32,
        })
    }

    /// Computes the queries of heads, and those of the indexer.
    fn queries(&self, pass: &Pass<'_, B>, x: &B::Act) -> Result<(B::Act, Option<Indexed<B>>)> {
        let backend = pass.backend;
        match &self.query {
            Query::Plain(query) => {
                let [query] = backend.project([query], x)?;
                Ok((query, None))
            }
            Query::LowRank { down, norm, up } => {
                let [low] = backend.project([down], x)?;
                let low = backend.norm(norm, &low)?;
                let [query] = backend.project([up], &low)?;
                Ok((query, self.indexer.as_ref().map(|indexer| indexer.forward(pass, x, &low)).transpose()?))
            }
        }
    }

    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut LayerSequences<'_, B>,
    ) -> Result<B::Act> {
        let (backend, heads) = (pass.backend, self.keys.matrices.len());
        let (mut query, indexed) = self.queries(pass, x)?;
        let angles = &pass.angles[self.angles];
        let all = HeadPart { width: self.rope_dim, first: 0, count: self.rope_dim };
        let head = |first, count| HeadPart { width: self.nope_dim + self.rope_dim, first, count };
        if let Some(growth) = self.growth {
            let width = self.nope_dim + self.rope_dim;
            query = backend.rotate(query, head(0, width), &pass.angles[growth])?;
        }
        let rotated = backend.rotate(backend.part(&query, head(self.nope_dim, self.rope_dim))?, all, angles)?;
        let brought = backend.part(&query, head(0, self.nope_dim))?;
        let brought = self.keys.project(backend, true, &brought)?;
        let mut query = backend.join(&brought, &rotated, heads)?;

        let [row] = backend.project([&self.down], x)?;
        let row_part = |first, count| HeadPart { width: self.rank + self.rope_dim, first, count };
        let latent = backend.norm(&self.norm, &backend.part(&row, row_part(0, self.rank))?)?;
        let rotated = backend.rotate(backend.part(&row, row_part(self.rank, self.rope_dim))?, all, angles)?;
        let mut key = backend.join(&latent, &rotated, 1)?;
        let mut key_dim = self.rank + self.rope_dim;
        if let Some(indexed) = &indexed {
            (query, key) = behind_latents(backend, [&query, &key], indexed, heads)?;
            key_dim += indexed.key_dim;
        }

        let attend = Attend {
            heads,
            kv_heads: 1,
            key_dim,
            value_dim: self.rank,
            values: Values::InKeys,
            scale: self.scale,
            soft_cap: None,
            window: None,
            chunk: None,
            causal: true,
            has_causal_pictures: false,
            reads_only: false,
            sinks: None,
            position_bias: None,
            indexer: self.indexer.as_ref().zip(indexed.as_ref()).map(|(indexer, indexed)| indexer.queries(indexed)),
            chosen: None,
            entries: None,
        };
        let mixed = backend.attend(&attend, [&query, &key, &key], sequences)?;
        let values = self.values.project(backend, false, &mixed)?;
        let [out] = backend.project([&self.output], &values)?;
        Ok(out)
    }
}

/// Puts the key of the indexer behind the latent row, and zeros behind the query of each head.
fn behind_latents<B: Backend>(
    backend: &B,
    [query, key]: [&B::Act; 2],
    indexed: &Indexed<B>,
    heads: usize,
) -> Result<(B::Act, B::Act)> {
    let zeros = backend.rows(query.count(), heads * indexed.key_dim, |rows| {
        rows.fill(0.0);
        Ok(())
    })?;
    Ok((backend.join(query, &zeros, heads)?, backend.join(key, &indexed.key, 1)?))
}
