//! candle: tensors on any device. On GPUs it is the backend; on the CPU, in float32, it is the reference that the other one
//! is held against.

mod attention;
mod matrix;
mod recurrent;
mod state;

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use architectures::{Activation, HeadLayout, NormKind};
use candle_core::{D, DType, Device, Tensor};
use protocol::limits::DEVICE_SCORES;

use crate::backend::{
    AnglesOf, Attend, Backend, Convolution, DeltaInputs, DeltaRule, Map, MatrixSource, NormOf, Part, Run, Sequence,
    StateShape,
};
use crate::device;
use matrix::Matrix;
pub(crate) use state::State;

/// A device that candle computes on.
#[derive(Clone, Debug)]
pub(crate) struct Candle {
    device: Device,
    /// Expand all weights to float32, compute and keep everything in it.
    reference: bool,
}

/// Cosines and sines of a pass's tokens, `[tokens, half]`.
#[derive(Debug)]
pub(crate) struct Angles {
    cosines: Tensor,
    sines: Tensor,
    layout: HeadLayout,
}

impl Candle {
    pub(crate) fn new(device: Device, reference: bool) -> Self {
        Self { device, reference }
    }

    fn index(&self, rows: &[usize]) -> Result<Tensor> {
        Ok(Tensor::from_iter(rows.iter().map(|row| *row as u32), &self.device)?)
    }
}

/// `[tokens, heads · width]` as `[tokens, heads, width]`.
fn by_head(x: &Tensor, width: usize) -> Result<Tensor> {
    let (tokens, all) = x.dims2()?;
    Ok(x.reshape((tokens, all / width, width))?)
}

fn flat(x: &Tensor) -> Result<Tensor> {
    Ok(x.flatten_from(1)?)
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    Ok(candle_nn::ops::sigmoid(x)?)
}

fn activate(activation: Activation, x: &Tensor) -> Result<Tensor> {
    Ok(match activation {
        Activation::Silu | Activation::ClampedSilu { .. } => x.silu()?,
        Activation::GeluTanh => x.gelu()?,
        Activation::Gelu => x.gelu_erf()?,
        Activation::Relu => x.relu()?,
    })
}

impl Backend for Candle {
    type Act = Tensor;
    type Matrix = Matrix;
    type Vector = Tensor;
    type State = State;
    type Angles = Angles;

    fn device(&self) -> String {
        device::name(&self.device)
    }

    fn chunk(&self, heads: usize, length: usize, tokens: usize) -> usize {
        (DEVICE_SCORES / (heads * (length + tokens)).max(1)).clamp(1, tokens)
    }

    fn matrix(&self, source: MatrixSource<Self>) -> Result<Matrix> {
        Matrix::new(source, &self.device, self.reference)
    }

    fn vector(&self, numbers: Vec<f32>) -> Result<Tensor> {
        let count = numbers.len();
        Ok(Tensor::from_vec(numbers, count, &self.device)?)
    }

    fn state(&self, shape: StateShape) -> Result<State> {
        State::new(shape, &self.device, self.reference)
    }

    fn rows(&self, rows: usize, width: usize, fill: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<Tensor> {
        let mut numbers = vec![0.0; rows * width];
        fill(&mut numbers)?;
        Ok(Tensor::from_vec(numbers, (rows, width), &self.device)?)
    }

    fn read(&self, x: &Tensor, rows: Range<usize>, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let numbers = x.narrow(0, rows.start, rows.len())?.to_vec2::<f32>()?;
        numbers.iter().try_for_each(|row| each(row))
    }

    fn count(&self, x: &Tensor) -> usize {
        x.dims()[0]
    }

    fn select(&self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        Ok(x.index_select(&self.index(rows)?, 0)?)
    }

    fn project_runs<'a, const N: usize>(
        &'a self,
        runs: &[Run],
        by: impl Fn(usize) -> [&'a Matrix; N] + Sync,
        x: &Tensor,
    ) -> Result<[Tensor; N]> {
        ensure!(Run::are_all(runs, x.dim(0)?), "invariant: runs are all rows");
        let of_kind = |at: usize| -> Result<Tensor> {
            if let [run] = runs {
                return by(run.by)[at].forward(x);
            }
            let own = |run: &Run| x.narrow(0, run.rows.start, run.rows.len())?.contiguous();
            let all = runs.iter().map(|run| by(run.by)[at].forward(&own(run)?)).collect::<Result<Vec<_>>>()?;
            Ok(Tensor::cat(&all, 0)?)
        };
        let all = (0..N).map(of_kind).collect::<Result<Vec<_>>>()?;
        all.try_into().ok().context("invariant: one result for each")
    }

    fn project_heads(&self, matrices: &[Matrix], transposed: bool, x: &Tensor) -> Result<Tensor> {
        let width = x.dim(1)? / matrices.len();
        let head = |(index, matrix): (usize, &Matrix)| -> Result<Tensor> {
            let own = x.narrow(1, index * width, width)?.contiguous()?;
            if transposed { Ok(own.matmul(&matrix.float()?)?) } else { matrix.forward(&own) }
        };
        let heads = matrices.iter().enumerate().map(head).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&heads, 1)?)
    }

    fn norm(&self, norm: &NormOf<Self>, x: &Tensor) -> Result<Tensor> {
        let runs = by_head(x, norm.width)?.contiguous()?;
        // Runs that take turns are normed by ones first.
        let turns = norm.weight.dim(0)? / norm.width;
        let weight = norm.weight.narrow(0, 0, norm.width)?;
        let weight = if turns == 1 { weight } else { weight.ones_like()? };
        let normed = match norm.kind {
            NormKind::Rms => candle_nn::ops::rms_norm(&runs, &weight, norm.epsilon)?,
            NormKind::Layer => candle_nn::ops::layer_norm(&runs, &weight, &weight.zeros_like()?, norm.epsilon)?,
        };
        let normed =
            if turns == 1 { normed } else { normed.broadcast_mul(&norm.weight.reshape((turns, norm.width))?)? };
        match &norm.bias {
            Some(bias) => flat(&normed.broadcast_add(bias)?),
            None => flat(&normed),
        }
    }

    fn map(&self, x: Tensor, map: Map<'_, Tensor>) -> Result<Tensor> {
        Ok(match map {
            Map::Add(y, scale) if scale.to_bits() == 1.0f32.to_bits() => (x + y)?,
            Map::Add(y, scale) => (x + (y * f64::from(scale))?)?,
            Map::Scale(scale) => (x * f64::from(scale))?,
            Map::Clamp(limit) => x.clamp(-limit, limit)?,
            Map::SoftCap(cap) => ((x / f64::from(cap))?.tanh()? * f64::from(cap))?,
            Map::Times(y) => (x * y)?,
            Map::Sigmoid(y) => x.broadcast_mul(&sigmoid(y)?)?,
            Map::Silu(y) => (x * y.silu()?)?,
            Map::Activate(activation) => activate(activation, &x)?,
            Map::Gate(Activation::ClampedSilu { limit }, y) => {
                let (gate, up) = (x.minimum(limit)?, y.clamp(-limit, limit)?);
                ((&gate * sigmoid(&(&gate * 1.702)?)?)? * (up + 1.0)?)?
            }
            Map::Gate(activation, y) => (activate(activation, &x)? * y)?,
        })
    }

    fn part(&self, x: &Tensor, part: Part) -> Result<Tensor> {
        flat(&by_head(x, part.width)?.narrow(D::Minus1, part.first, part.count)?.contiguous()?)
    }

    fn join(&self, a: &Tensor, b: &Tensor, heads: usize) -> Result<Tensor> {
        let (first, second) = (a.dim(1)? / heads, b.dim(1)? / heads);
        flat(&Tensor::cat(&[by_head(a, first)?, by_head(b, second)?], 2)?)
    }

    fn angles(&self, angles: &AnglesOf<'_>) -> Result<Angles> {
        let shape = (angles.positions.len(), angles.half());
        let (mut cosines, mut sines) = (vec![0.0; shape.0 * shape.1], vec![0.0; shape.0 * shape.1]);
        angles.fill(&mut cosines, &mut sines);
        let upload = |numbers| Tensor::from_vec(numbers, shape, &self.device);
        Ok(Angles { cosines: upload(cosines)?, sines: upload(sines)?, layout: angles.layout })
    }

    fn rotate(&self, x: Tensor, part: Part, angles: &Angles) -> Result<Tensor> {
        let heads = by_head(&x, part.width)?;
        // `[1, heads, tokens, count]`, as candle's kernels want it.
        let turned = heads.narrow(2, part.first, part.count)?.transpose(0, 1)?.unsqueeze(0)?.contiguous()?;
        let turned = match angles.layout {
            HeadLayout::Half => candle_nn::rotary_emb::rope(&turned, &angles.cosines, &angles.sines)?,
            HeadLayout::Interleaved => candle_nn::rotary_emb::rope_i(&turned, &angles.cosines, &angles.sines)?,
        };
        let turned = turned.squeeze(0)?.transpose(0, 1)?;
        let mut parts = Vec::new();
        if part.first > 0 {
            parts.push(heads.narrow(2, 0, part.first)?);
        }
        parts.push(turned);
        let rest = part.first + part.count;
        if rest < part.width {
            parts.push(heads.narrow(2, rest, part.width - rest)?);
        }
        flat(&Tensor::cat(&parts, 2)?)
    }

    fn attend(
        &self,
        attend: &Attend<'_, Self>,
        qkv: [&Tensor; 3],
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Tensor> {
        let each = sequences.iter_mut().map(|sequence| attention::attend(attend, qkv, sequence, layer));
        Ok(Tensor::cat(&each.collect::<Result<Vec<_>>>()?, 0)?)
    }

    fn convolve(
        &self,
        convolution: &Convolution<Self>,
        x: &Tensor,
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Tensor> {
        let each = sequences.iter_mut().map(|sequence| recurrent::convolve(convolution, x, sequence, layer));
        Ok(Tensor::cat(&each.collect::<Result<Vec<_>>>()?, 0)?)
    }

    fn delta_rule(
        &self,
        rule: &DeltaRule<Self>,
        inputs: DeltaInputs<'_, Self>,
        sequences: &mut [Sequence<'_, Self>],
        layer: usize,
    ) -> Result<Tensor> {
        let each = sequences.iter_mut().map(|sequence| recurrent::delta(rule, &inputs, sequence, layer));
        Ok(Tensor::cat(&each.collect::<Result<Vec<_>>>()?, 0)?)
    }

    fn scatter(&self, x: Tensor, y: &Tensor, rows: &[usize], weights: &[f32]) -> Result<Tensor> {
        let weights = Tensor::from_slice(weights, (weights.len(), 1), &self.device)?;
        Ok(x.index_add(&self.index(rows)?, &y.broadcast_mul(&weights.to_dtype(DType::F32)?)?, 0)?)
    }
}
