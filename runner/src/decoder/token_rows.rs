//! Embeddings behind the residual stream in the rows of a pass: `[hidden | rest]`.

use anyhow::Result;
use architectures::Blueprint;

use super::layer_embeddings::LayerEmbeddings;
use crate::backend::{Backend, HeadPart};
use crate::weights::Weights;

/// Embeddings of tokens behind the residual stream.
#[derive(Debug)]
pub(super) enum TokenRows<B: Backend> {
    /// Of each layer.
    Layers(LayerEmbeddings<B>),
    /// Of n-grams, for some layers.
    Ngrams(NgramRows),
}

/// The place of the embeddings of n-grams in a row.
#[derive(Debug)]
pub(super) struct NgramRows {
    hidden: usize,
    /// Number of elements of each layer; 0 if it has none.
    widths: Vec<usize>,
}

impl<B: Backend> TokenRows<B> {
    /// Returns the embeddings of a model; `None` if rows have the residual stream only.
    pub(super) fn load(backend: &B, weights: &Weights, blueprint: &Blueprint) -> Result<Option<Self>> {
        if let Some(layers) = LayerEmbeddings::load(backend, weights, blueprint)? {
            return Ok(Some(Self::Layers(layers)));
        }
        let width = |layer: &architectures::Layer| layer.ngrams.as_ref().map_or(0, |own| own.embedding.embedded());
        let widths: Vec<usize> = blueprint.layers.iter().map(|layer| width(layer) as usize).collect();
        let has_some = widths.iter().any(|width| *width > 0);
        Ok(has_some.then(|| Self::Ngrams(NgramRows { hidden: blueprint.hidden as usize, widths })))
    }

    /// Returns the number of elements of a row of a pass.
    pub(super) fn row_width(&self) -> usize {
        match self {
            Self::Layers(own) => own.row_width(),
            Self::Ngrams(own) => own.hidden + own.embedded(),
        }
    }

    /// Takes rows of a pass apart: returns the residual stream, and the embeddings.
    pub(super) fn complete(&self, backend: &B, rows: &B::Act) -> Result<(B::Act, B::Act)> {
        match self {
            Self::Layers(own) => own.complete(backend, rows),
            Self::Ngrams(own) => {
                let part = |first, count| HeadPart { width: self.row_width(), first, count };
                let stream = backend.part(rows, part(0, own.hidden))?;
                Ok((stream, backend.part(rows, part(own.hidden, own.embedded()))?))
            }
        }
    }

    /// Returns the embeddings of a layer, if it has them.
    pub(super) fn of_layer(&self, backend: &B, all: &B::Act, layer: usize) -> Result<Option<B::Act>> {
        match self {
            Self::Layers(own) => own.of_layer(backend, all, layer).map(Some),
            Self::Ngrams(own) if own.widths[layer] == 0 => Ok(None),
            Self::Ngrams(own) => {
                let first = own.widths[..layer].iter().sum();
                let part = HeadPart { width: own.embedded(), first, count: own.widths[layer] };
                backend.part(all, part).map(Some)
            }
        }
    }
}

impl NgramRows {
    fn embedded(&self) -> usize {
        self.widths.iter().sum()
    }
}
