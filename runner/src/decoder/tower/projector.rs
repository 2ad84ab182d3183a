//! The projector of a tower: rows of patches become rows of the decoder's width.

use anyhow::{Context, Result, ensure};
use architectures::{Activation, BlockJoin};

use super::numbers;
use crate::backend::{Activations, Backend, Map, NormOf};
use crate::weights::Weights;

/// Normalizes rows, joins those of each block of patches to one, and projects them.
#[derive(Debug)]
pub(super) struct Projector<B: Backend> {
    norm: Option<NormOf<B>>,
    /// Number of rows that become one.
    joined: usize,
    join: BlockJoin,
    scale: Option<f32>,
    /// Shift and factors of scaled rows.
    standard: Option<[Vec<f32>; 2]>,
    joined_norm: Option<NormOf<B>>,
    layers: Vec<(B::Matrix, Option<Activation>)>,
}

impl<B: Backend> Projector<B> {
    pub(super) fn load(
        backend: &B,
        weights: &Weights,
        own: &architectures::Projector,
        tower: &architectures::Tower,
    ) -> Result<Self> {
        let norm = |norm: &Option<architectures::Norm>, width: usize| {
            norm.as_ref().map(|norm| weights.norm(backend, norm, width)).transpose()
        };
        let joined_width = tower.joined_width(own) as usize;
        let mut width = joined_width;
        let mut layers = Vec::with_capacity(own.layers.len());
        for layer in &own.layers {
            let output = layer.width as usize;
            layers.push((weights.matrix(backend, &layer.projection, width, output, None)?, layer.activation));
            width = output;
        }
        let standard = own.standard.as_ref().map(|own| -> Result<[Vec<f32>; 2]> {
            let read = |tensor| weights.numbers(tensor, &[joined_width]);
            Ok([read(&own.shift)?, read(&own.factor)?])
        });
        Ok(Self {
            norm: norm(&own.norm, tower.hidden as usize)?,
            joined: tower.joined() as usize,
            join: own.join,
            scale: own.scale.map(|scale| scale as f32),
            standard: standard.transpose()?,
            joined_norm: norm(&own.joined_norm, joined_width)?,
            layers,
        })
    }

    /// Returns the rows for the decoder, `[rows, hidden]`.
    pub(super) fn project(&self, backend: &B, x: &B::Act) -> Result<Vec<f32>> {
        let normed = self.norm.as_ref().map(|norm| backend.norm(norm, x)).transpose()?;
        let mut x = self.joined(backend, normed.as_ref().unwrap_or(x))?;
        if let Some(norm) = &self.joined_norm {
            x = backend.norm(norm, &x)?;
        }
        for (projection, activation) in &self.layers {
            [x] = backend.project([projection], &x)?;
            if let Some(activation) = activation {
                x = backend.map(x, Map::Activate(*activation))?;
            }
        }
        numbers(backend, &x)
    }

    /// Joins the rows of each block to one. The rows of a block follow each other.
    fn joined(&self, backend: &B, x: &B::Act) -> Result<B::Act> {
        let rows = x.count() / self.joined;
        ensure!(rows * self.joined == x.count(), "invariant: the patches are whole blocks");
        let mut numbers = numbers(backend, x)?;
        let width = numbers.len().checked_div(rows).context("invariant: a picture has patches")?;
        let blocks = numbers.chunks_exact(width);
        match self.join {
            BlockJoin::Rows => {}
            BlockJoin::Elements => numbers = blocks.flat_map(|block| by_elements(block, self.joined)).collect(),
            BlockJoin::Mean => numbers = blocks.flat_map(|block| mean(block, self.joined)).collect(),
        }
        let width = numbers.len() / rows;
        if let Some(scale) = self.scale {
            for x in &mut numbers {
                *x *= scale;
            }
        }
        if let Some([shift, factor]) = &self.standard {
            for row in numbers.chunks_exact_mut(width) {
                row.iter_mut().zip(shift).zip(factor).for_each(|((x, shift), factor)| *x = (*x - shift) * factor);
            }
        }
        backend.rows(rows, width, |out| {
            out.copy_from_slice(&numbers);
            Ok(())
        })
    }
}

/// Returns the first elements of `count` rows, then the second ones, and so on.
fn by_elements(rows: &[f32], count: usize) -> Vec<f32> {
    let width = rows.len() / count;
    (0..width).flat_map(|element| rows.iter().skip(element).step_by(width).copied()).collect()
}

/// Returns the mean of `count` rows.
fn mean(rows: &[f32], count: usize) -> Vec<f32> {
    let width = rows.len() / count;
    let mut mean = vec![0.0; width];
    for row in rows.chunks_exact(width) {
        mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x);
    }
    for mean in &mut mean {
        *mean /= count as f32;
    }
    mean
}
