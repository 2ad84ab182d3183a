//! The end of a decoder: the final norm and the output projection.

use anyhow::{Context, Result};
use architectures::Blueprint;

use crate::backend::{Backend, Map, NormOf};
use crate::weights::Weights;

/// The final norm and the output projection.
#[derive(Debug)]
pub(super) struct Head<B: Backend> {
    /// `None` if the last layer normalizes its output.
    norm: Option<NormOf<B>>,
    /// `None` if the model computes no logits.
    output: Option<Output<B>>,
}

#[derive(Debug)]
struct Output<B: Backend> {
    projection: B::Matrix,
    scale: Option<f32>,
    soft_cap: Option<f32>,
}

impl<B: Backend> Head<B> {
    pub(super) fn load(backend: &B, weights: &Weights, blueprint: &Blueprint) -> Result<Self> {
        let (vocabulary, hidden) = (blueprint.vocabulary as usize, blueprint.hidden as usize);
        let output = |output: &architectures::Output| -> Result<Output<B>> {
            Ok(Output {
                projection: weights.matrix(backend, &output.projection, hidden, vocabulary, None)?,
                scale: output.scale.map(|scale| scale as f32),
                soft_cap: output.soft_cap.map(|cap| cap as f32),
            })
        };
        Ok(Self {
            norm: blueprint.norm.as_ref().map(|norm| weights.norm(backend, norm, hidden)).transpose()?,
            output: blueprint.output.as_ref().map(output).transpose()?,
        })
    }

    /// Applies the final norm to rows of the residual stream, `[rows, hidden]`.
    pub(super) fn hidden(&self, backend: &B, rows: B::Act) -> Result<B::Act> {
        match &self.norm {
            Some(norm) => backend.norm(norm, &rows),
            None => Ok(rows),
        }
    }

    /// Computes the logits of rows of the residual stream, `[rows, vocabulary]`.
    pub(super) fn logits(&self, backend: &B, rows: B::Act) -> Result<B::Act> {
        let output = self.output.as_ref().context("the model computes no logits; it only embeds or scores texts")?;
        let [mut logits] = backend.project([&output.projection], &self.hidden(backend, rows)?)?;
        if let Some(scale) = output.scale {
            logits = backend.map(logits, Map::Scale(scale))?;
        }
        match output.soft_cap {
            Some(cap) => backend.map(logits, Map::SoftCap(cap)),
            None => Ok(logits),
        }
    }
}
