//! Operations composed of candle's own, for devices without our kernels.

use anyhow::Result;
use architectures::{Activation, HeadLayout};
use candle_core::Tensor;

use super::Act;
use super::Angles;
use crate::backend::{HeadPart, Map};

/// Reshapes `[tokens, heads · width]` to `[tokens, heads, width]`.
pub(in crate::backends::candle) fn by_head(x: &Tensor, width: usize) -> Result<Tensor> {
    let (tokens, all) = x.dims2()?;
    Ok(x.reshape((tokens, all / width, width))?)
}

pub(in crate::backends::candle) fn flat(x: &Tensor) -> Result<Tensor> {
    Ok(x.flatten_from(1)?)
}

pub(in crate::backends::candle) fn sigmoid(x: &Tensor) -> Result<Tensor> {
    Ok(candle_nn::ops::sigmoid(x)?)
}

/// `ln(1 + exp(x)) = max(x, 0) + ln(1 + exp(-|x|))`.
pub(in crate::backends::candle) fn softplus(x: &Tensor) -> Result<Tensor> {
    Ok((x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?)?)
}

/// Multiplies each of several runs of a row by one number, `[tokens, runs]`.
fn by_runs(x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    let ((_, width), (_, runs)) = (x.dims2()?, factors.dims2()?);
    flat(&by_head(x, width / runs)?.broadcast_mul(&factors.unsqueeze(2)?)?)
}

fn activate(activation: Activation, x: &Tensor) -> Result<Tensor> {
    Ok(match activation {
        Activation::Silu | Activation::ClampedSilu { .. } | Activation::BoundedSilu { .. } => x.silu()?,
        Activation::GeluTanh => x.gelu()?,
        Activation::Gelu => x.gelu_erf()?,
        Activation::GeluQuick => x.broadcast_mul(&sigmoid(&(x * 1.702)?)?)?,
        Activation::Relu => x.relu()?,
        Activation::ReluSquared => x.relu()?.sqr()?,
    })
}

/// Applies RoPE to a part of each head.
pub(in crate::backends::candle) fn rotated(x: &Tensor, part: HeadPart, angles: &Angles) -> Result<Tensor> {
    let heads = by_head(x, part.width)?;
    // `[1, heads, tokens, count]`, as candle's kernels require.
    let rotated = heads.narrow(2, part.first, part.count)?.transpose(0, 1)?.unsqueeze(0)?.contiguous()?;
    let rotated = match angles.layout {
        HeadLayout::Half => candle_nn::rotary_emb::rope(&rotated, &angles.cosines, &angles.sines)?,
        HeadLayout::Interleaved => candle_nn::rotary_emb::rope_i(&rotated, &angles.cosines, &angles.sines)?,
    };
    let rotated = rotated.squeeze(0)?.transpose(0, 1)?;
    let mut parts = Vec::new();
    if part.first > 0 {
        parts.push(heads.narrow(2, 0, part.first)?);
    }
    parts.push(rotated);
    let rest = part.first + part.count;
    if rest < part.width {
        parts.push(heads.narrow(2, rest, part.width - rest)?);
    }
    flat(&Tensor::cat(&parts, 2)?)
}

/// Maps every element.
pub(in crate::backends::candle) fn mapped(x: &Tensor, map: &Map<'_, Act>) -> Result<Tensor> {
    Ok(match *map {
        Map::Add(y, scale) if scale.to_bits() == 1.0f32.to_bits() => (x + y.rows()?)?,
        Map::Add(y, scale) => (x + (y.rows()? * f64::from(scale))?)?,
        Map::Scale(scale) => (x * f64::from(scale))?,
        Map::Clamp { low, high } => x.clamp(low, high)?,
        Map::SoftCap(cap) => ((x / f64::from(cap))?.tanh()? * f64::from(cap))?,
        Map::Times(y) => (x * y.rows()?)?,
        Map::Sigmoid(y) => by_runs(x, &sigmoid(y.rows()?)?)?,
        Map::Softplus(y) => by_runs(x, &softplus(y.rows()?)?)?,
        Map::Silu(y) => (x * y.rows()?.silu()?)?,
        Map::Activate(activation) => activate(activation, x)?,
        Map::Gate(Activation::ClampedSilu { limit }, y) => {
            let (gate, up) = (x.minimum(limit)?, y.rows()?.clamp(-limit, limit)?);
            ((&gate * sigmoid(&(&gate * 1.702)?)?)? * (up + 1.0)?)?
        }
        Map::Gate(Activation::BoundedSilu { limit }, y) => {
            (x.minimum(limit)?.silu()? * y.rows()?.clamp(-limit, limit)?)?
        }
        Map::Gate(activation, y) => (activate(activation, x)? * y.rows()?)?,
        Map::SignedRoot(least) => (x.abs()?.maximum(least)?.sqrt()? * x.sign()?)?,
        Map::Xielu { positive, negative } => {
            let above = (x.maximum(0.0)?.sqr()? * f64::from(positive))?;
            // Zero for positive numbers, except for the rounding of the bound.
            let below = x.minimum(0.0)?;
            let curve = ((below.minimum(-1e-6)?.exp()? - 1.0)? - &below)?;
            (above + ((curve * f64::from(negative))? + (x * 0.5)?)?)?
        }
    })
}
