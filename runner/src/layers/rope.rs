//! Rotary position embedding.

use anyhow::{Context, Result};
use architectures::HeadLayout;
use candle_core::{Device, Tensor};

use crate::kernels::rotation;

/// Turns heads by angles that grow with the position.
#[derive(Debug)]
pub(crate) struct Rotary {
    /// Radians per position, `head_dim / 2` of them.
    frequencies: Vec<f64>,
    layout: HeadLayout,
}

/// Cosines and sines for the tokens of one pass, `[tokens, head_dim / 2]`. Computed for each: a table for all positions
/// of a long context would be larger than its use.
#[derive(Debug)]
pub(crate) struct Angles {
    cosines: Vec<f32>,
    sines: Vec<f32>,
    /// Both on the device, where that is not the CPU.
    tensors: Option<[Tensor; 2]>,
    half: usize,
    layout: HeadLayout,
}

impl Rotary {
    /// `frequencies` in radians per position, `head_dim / 2` of them.
    pub(crate) fn new(frequencies: Vec<f64>, layout: HeadLayout) -> Self {
        Self { frequencies, layout }
    }

    /// The angles of tokens at these positions.
    pub(crate) fn angles(&self, positions: &[usize], device: &Device) -> Result<Angles> {
        let half = self.frequencies.len();
        let angles = positions.iter().flat_map(|position| self.frequencies.iter().map(move |f| *position as f64 * f));
        let (sines, cosines): (Vec<f32>, Vec<f32>) =
            angles.map(|angle| (angle.sin() as f32, angle.cos() as f32)).unzip();
        let upload = |numbers: &[f32]| Tensor::from_slice(numbers, (positions.len(), half), device);
        let tensors = if device.is_cpu() { None } else { Some([upload(&cosines)?, upload(&sines)?]) };
        Ok(Angles { cosines, sines, tensors, half, layout: self.layout })
    }
}

impl Angles {
    /// Rotates `[tokens, heads, head_dim]` in memory.
    pub(crate) fn rotate(&self, x: &mut [f32], heads: usize) {
        let angles = self.cosines.chunks_exact(self.half).zip(self.sines.chunks_exact(self.half));
        for (token, (cosines, sines)) in x.chunks_exact_mut(heads * 2 * self.half).zip(angles) {
            rotation::rotate(token, cosines, sines, self.layout);
        }
    }

    /// Rotates `[1, heads, tokens, head_dim]` on the device; its first token is the pass's token `from`.
    pub(crate) fn rotate_tensor(&self, x: &Tensor, from: usize) -> Result<Tensor> {
        let [cosines, sines] = self.tensors.as_ref().context("the angles are not on the device")?;
        let tokens = x.dim(2)?;
        let (cosines, sines) = (cosines.narrow(0, from, tokens)?, sines.narrow(0, from, tokens)?);
        let x = x.contiguous()?;
        Ok(match self.layout {
            HeadLayout::Half => candle_nn::rotary_emb::rope(&x, &cosines, &sines)?,
            HeadLayout::Interleaved => candle_nn::rotary_emb::rope_i(&x, &cosines, &sines)?,
        })
    }
}
