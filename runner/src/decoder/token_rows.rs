//! Numbers of tokens behind the residual stream in the rows of a pass: `[hidden | rest]`.

use anyhow::Result;
use architectures::Blueprint;

use super::layer_embeddings::LayerEmbeddings;
use crate::backend::{Backend, HeadPart};
use crate::weights::Weights;

/// Numbers of tokens behind the residual stream.
#[derive(Debug)]
pub(super) enum TokenRows<B: Backend> {
    /// Of each layer.
    Layers(LayerEmbeddings<B>),
    /// Of n-grams for some layers, or the indexes of their experts.
    OfSomeLayers(RowParts),
}

/// The place of the numbers of layers in a row.
#[derive(Debug)]
pub(super) struct RowParts {
    hidden: usize,
    /// Number of elements of each layer; 0 if it has none.
    widths: Vec<usize>,
}

impl<B: Backend> TokenRows<B> {
    /// Returns those of a model; `None` if rows have the residual stream only.
    pub(super) fn load(backend: &B, weights: &Weights, blueprint: &Blueprint) -> Result<Option<Self>> {
        if let Some(layers) = LayerEmbeddings::load(backend, weights, blueprint)? {
            return Ok(Some(Self::Layers(layers)));
        }
        let widths: Vec<usize> = blueprint.layers.iter().map(|layer| layer.token_row_width() as usize).collect();
        let has_some = widths.iter().any(|width| *width > 0);
        Ok(has_some.then(|| Self::OfSomeLayers(RowParts { hidden: blueprint.hidden as usize, widths })))
    }

    /// Returns the number of elements of a row of a pass.
    pub(super) fn row_width(&self) -> usize {
        match self {
            Self::Layers(own) => own.row_width(),
            Self::OfSomeLayers(own) => own.hidden + own.width(),
        }
    }

    /// Takes rows of a pass apart: returns the residual stream, and the rest.
    pub(super) fn complete(&self, backend: &B, rows: &B::Act) -> Result<(B::Act, B::Act)> {
        match self {
            Self::Layers(own) => own.complete(backend, rows),
            Self::OfSomeLayers(own) => {
                let part = |first, count| HeadPart { width: self.row_width(), first, count };
                let stream = backend.part(rows, part(0, own.hidden))?;
                Ok((stream, backend.part(rows, part(own.hidden, own.width()))?))
            }
        }
    }

    /// Returns the numbers of a layer, if it has them.
    pub(super) fn of_layer(&self, backend: &B, all: &B::Act, layer: usize) -> Result<Option<B::Act>> {
        match self {
            Self::Layers(own) => own.of_layer(backend, all, layer).map(Some),
            Self::OfSomeLayers(own) if own.widths[layer] == 0 => Ok(None),
            Self::OfSomeLayers(own) => {
                let first = own.widths[..layer].iter().sum();
                let part = HeadPart { width: own.width(), first, count: own.widths[layer] };
                backend.part(all, part).map(Some)
            }
        }
    }
}

impl RowParts {
    fn width(&self) -> usize {
        self.widths.iter().sum()
    }
}
