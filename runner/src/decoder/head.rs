//! The end of a decoder: the final norm and the output projection.

use anyhow::{Context, Result};
use architectures::{Activation, Blueprint};

use crate::backend::{Backend, Map, NormOf};
use crate::weights::Weights;

/// The final norm and the output projection.
#[derive(Debug)]
pub(super) struct Head<B: Backend> {
    /// `None` if the last layer normalizes its output.
    norm: Option<NormOf<B>>,
    /// Projections of hidden states on the way to an embedding.
    embedder: Vec<B::Matrix>,
    /// `None` if the model computes no logits.
    output: Option<Output<B>>,
}

#[derive(Debug)]
struct Output<B: Backend> {
    head: Option<Dense<B>>,
    projection: B::Matrix,
    scale: Option<f32>,
    soft_cap: Option<f32>,
}

/// The layer before the output projection: `norm(act(projection(x)))`.
#[derive(Debug)]
struct Dense<B: Backend> {
    projection: B::Matrix,
    activation: Activation,
    norm: NormOf<B>,
}

impl<B: Backend> Head<B> {
    pub(super) fn load(backend: &B, weights: &Weights, blueprint: &Blueprint) -> Result<Self> {
        let (vocabulary, hidden) = (blueprint.vocabulary as usize, blueprint.hidden as usize);
        let dense = |head: &architectures::OutputHead| -> Result<Dense<B>> {
            Ok(Dense {
                projection: weights.matrix(backend, &head.projection, hidden, hidden, None)?,
                activation: head.activation,
                norm: weights.norm(backend, &head.norm, hidden)?,
            })
        };
        let output = |output: &architectures::Output| -> Result<Output<B>> {
            Ok(Output {
                head: output.head.as_deref().map(dense).transpose()?,
                projection: weights.matrix(backend, &output.projection, hidden, vocabulary, None)?,
                scale: output.scale.map(|scale| scale as f32),
                soft_cap: output.soft_cap.map(|cap| cap as f32),
            })
        };
        let mut width = hidden;
        let mut embedder = Vec::with_capacity(blueprint.embedder.len());
        for layer in &blueprint.embedder {
            embedder.push(weights.matrix(backend, &layer.projection, width, layer.width as usize, None)?);
            width = layer.width as usize;
        }
        Ok(Self {
            norm: blueprint.norm.as_ref().map(|norm| weights.norm(backend, norm, hidden)).transpose()?,
            embedder,
            output: blueprint.output.as_ref().map(output).transpose()?,
        })
    }

    /// Applies the final norm to rows of the residual stream, `[rows, hidden]`, and the projections
    /// to the elements of an embedding, if there are some.
    pub(super) fn hidden(&self, backend: &B, rows: B::Act) -> Result<B::Act> {
        let mut rows = match &self.norm {
            Some(norm) => backend.norm(norm, &rows)?,
            None => rows,
        };
        for matrix in &self.embedder {
            [rows] = backend.project([matrix], &rows)?;
        }
        Ok(rows)
    }

    /// Computes the logits of rows of the residual stream, `[rows, vocabulary]`.
    pub(super) fn logits(&self, backend: &B, rows: B::Act) -> Result<B::Act> {
        let output = self.output.as_ref().context("the model computes no logits; it only embeds or scores texts")?;
        let mut rows = self.hidden(backend, rows)?;
        if let Some(Dense { projection, activation, norm }) = &output.head {
            let [wide] = backend.project([projection], &rows)?;
            rows = backend.norm(norm, &backend.map(wide, Map::Activate(*activation))?)?;
        }
        let [mut logits] = backend.project([&output.projection], &rows)?;
        if let Some(scale) = output.scale {
            logits = backend.map(logits, Map::Scale(scale))?;
        }
        match output.soft_cap {
            Some(cap) => backend.map(logits, Map::SoftCap(cap)),
            None => Ok(logits),
        }
    }
}
