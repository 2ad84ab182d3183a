//! Multi-head latent attention: all heads attend to the same latent rows, into which queries are brought and out of which
//! values are taken by each head's own matrices. So keys and values of heads are never made.

use anyhow::Result;
use architectures::LatentQuery;

use super::{Loader, Pass};
use crate::backend::{Attend, Backend, NormOf, Part, Sequence, Values};

/// Latent attention.
#[derive(Debug)]
pub(crate) struct Latent<B: Backend> {
    query: Query<B>,
    down: B::Matrix,
    norm: NormOf<B>,
    keys: Vec<B::Matrix>,
    values: Vec<B::Matrix>,
    output: B::Matrix,
    angles: usize,
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

impl<B: Backend> Latent<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::Latent) -> Result<Self> {
        let Loader { backend, weights, hidden, angles } = *loader;
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
            (0..own.heads).map(|head| matrix(&matrices.projection(head), rank, output)).collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            query,
            down: matrix(&own.down, hidden, rank + rope_dim)?,
            norm: weights.norm(backend, &own.norm, rank)?,
            keys: each(&own.keys, nope_dim)?,
            values: each(&own.values, value_dim)?,
            output: matrix(&own.output, heads * value_dim, hidden)?,
            angles: angles.unwrap_or(0),
            nope_dim,
            rope_dim,
            rank,
            scale: own.scale as f32,
        })
    }

    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        sequences: &mut [Sequence<'_, B>],
        layer: usize,
    ) -> Result<B::Act> {
        let (backend, heads) = (pass.backend, self.keys.len());
        let query = match &self.query {
            Query::Plain(query) => backend.project([query], x)?,
            Query::LowRank { down, norm, up } => {
                let [low] = backend.project([down], x)?;
                backend.project([up], &backend.norm(norm, &low)?)?
            }
        };
        let angles = &pass.angles[self.angles];
        let all = Part { width: self.rope_dim, first: 0, count: self.rope_dim };
        let head = |first, count| Part { width: self.nope_dim + self.rope_dim, first, count };
        let [query] = query;
        let turned = backend.rotate(backend.part(&query, head(self.nope_dim, self.rope_dim))?, all, angles)?;
        let brought = backend.part(&query, head(0, self.nope_dim))?;
        let brought = backend.project_heads(heads, |head| &self.keys[head], true, &brought)?;
        let query = backend.join(&brought, &turned, heads)?;

        let [row] = backend.project([&self.down], x)?;
        let row_part = |first, count| Part { width: self.rank + self.rope_dim, first, count };
        let latent = backend.norm(&self.norm, &backend.part(&row, row_part(0, self.rank))?)?;
        let turned = backend.rotate(backend.part(&row, row_part(self.rank, self.rope_dim))?, all, angles)?;
        let key = backend.join(&latent, &turned, 1)?;

        let attend = Attend {
            heads,
            kv_heads: 1,
            key_dim: self.rank + self.rope_dim,
            value_dim: self.rank,
            values: Values::InKeys,
            scale: self.scale,
            soft_cap: None,
            window: None,
            causal: true,
            sinks: None,
        };
        let mixed = backend.attend(&attend, [&query, &key, &key], sequences, layer)?;
        let values = backend.project_heads(heads, |head| &self.values[head], false, &mixed)?;
        let [out] = backend.project([&self.output], &values)?;
        Ok(out)
    }
}
