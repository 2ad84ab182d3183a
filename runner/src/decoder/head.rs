//! The end of a decoder: the final norm, the output projection, and the layers behind pooling.

use anyhow::{Context, Result, ensure};
use architectures::{Activation, Blueprint, PooledActivation};

use crate::backend::{Backend, Map, NormOf};
use crate::pooled_activation::activate;
use crate::weights::Weights;

/// The final norm, the output projection, and the layers behind pooling.
#[derive(Debug)]
pub(super) struct Head<B: Backend> {
    /// `None` if the last layer normalizes its output.
    norm: Option<NormOf<B>>,
    /// Layers behind pooling.
    embedder: Vec<EmbedderLayer<B>>,
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

/// A layer behind pooling: `activation(projection(x))`.
#[derive(Debug)]
struct EmbedderLayer<B: Backend> {
    inputs: usize,
    projection: B::Matrix,
    activation: Option<PooledActivation>,
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
        let embedder_layer = |layer: &architectures::EmbedderLayer| -> Result<EmbedderLayer<B>> {
            let inputs = layer.inputs as usize;
            let projection = weights.matrix(backend, &layer.projection, inputs, layer.width as usize, None)?;
            Ok(EmbedderLayer { inputs, projection, activation: layer.activation })
        };
        Ok(Self {
            norm: blueprint.norm.as_ref().map(|norm| weights.norm(backend, norm, hidden)).transpose()?,
            embedder: blueprint.embedder.iter().map(embedder_layer).collect::<Result<_>>()?,
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

    /// Applies the layers behind pooling to the pooled hidden states of a text.
    pub(super) fn embed(&self, backend: &B, pooled: Vec<f32>) -> Result<Vec<f32>> {
        self.embedder.iter().try_fold(pooled, |x, layer| layer.apply(backend, &x))
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

impl<B: Backend> EmbedderLayer<B> {
    fn apply(&self, backend: &B, x: &[f32]) -> Result<Vec<f32>> {
        let (found, expected) = (x.len(), self.inputs);
        ensure!(found == expected, "invariant: a layer that takes {expected} numbers gets {found}");
        let row = backend.rows(1, expected, |row| {
            row.copy_from_slice(x);
            Ok(())
        })?;
        let [row] = backend.project([&self.projection], &row)?;
        let mut result = Vec::new();
        backend.read(&row, 0..1, &mut |row| {
            result.extend_from_slice(row);
            Ok(())
        })?;
        if let Some(activation) = self.activation {
            for x in &mut result {
                *x = activate(activation, f64::from(*x)) as f32;
            }
        }
        Ok(result)
    }
}
