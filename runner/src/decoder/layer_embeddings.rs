//! Embeddings of tokens for each layer, see [`architectures::LayerEmbeddings`].
//!
//! The rows of a pass have the parts of the table behind the residual stream, `[hidden | layers ·
//! width]`. The first stage takes them apart and completes the embeddings.

use anyhow::Result;
use architectures::Blueprint;

use crate::backend::{Backend, HeadPart, Map, NormOf};
use crate::weights::Weights;

/// The parts that complete the embeddings of layers.
#[derive(Debug)]
pub(super) struct LayerEmbeddings<B: Backend> {
    /// Whether rows of a table are behind the residual stream.
    has_table: bool,
    projection: B::Matrix,
    projection_scale: f32,
    norm: NormOf<B>,
    sum_scale: f32,
    hidden: usize,
    /// Number of layers.
    layers: usize,
    /// Elements of a layer's embedding.
    width: usize,
}

impl<B: Backend> LayerEmbeddings<B> {
    pub(super) fn load(backend: &B, weights: &Weights, blueprint: &Blueprint) -> Result<Option<Self>> {
        let Some(own) = &blueprint.embedding.of_layers else { return Ok(None) };
        let (hidden, layers, width) = (blueprint.hidden as usize, blueprint.layers.len(), own.width as usize);
        Ok(Some(Self {
            has_table: own.table.is_some(),
            projection: weights.matrix(backend, &own.projection, hidden, layers * width, None)?,
            projection_scale: own.projection_scale as f32,
            norm: weights.norm(backend, &own.norm, width)?,
            sum_scale: own.sum_scale as f32,
            hidden,
            layers,
            width,
        }))
    }

    /// Returns the number of elements of a row of a pass.
    pub(super) fn row_width(&self) -> usize {
        self.hidden + if self.has_table { self.layers * self.width } else { 0 }
    }

    /// Takes rows of a pass apart: returns the residual stream, and the embeddings of all layers,
    /// `[tokens, layers · width]`.
    pub(super) fn complete(&self, backend: &B, rows: &B::Act) -> Result<(B::Act, B::Act)> {
        let part = |first, count| HeadPart { width: self.row_width(), first, count };
        let stream = backend.part(rows, part(0, self.hidden))?;
        let [projected] = backend.project([&self.projection], &stream)?;
        let mut sum = backend.norm(&self.norm, &backend.map(projected, Map::Scale(self.projection_scale))?)?;
        if self.has_table {
            let table = backend.part(rows, part(self.hidden, self.layers * self.width))?;
            sum = backend.map(sum, Map::Add(&table, 1.0))?;
        }
        Ok((stream, backend.map(sum, Map::Scale(self.sum_scale))?))
    }

    /// Returns the embedding of one layer, `[tokens, width]`.
    pub(super) fn of_layer(&self, backend: &B, all: &B::Act, layer: usize) -> Result<B::Act> {
        let all_width = self.layers * self.width;
        backend.part(all, HeadPart { width: all_width, first: layer * self.width, count: self.width })
    }
}
