//! Rotary position embedding.

use anyhow::Result;
use candle_core::{Device, Tensor};
use formats::hyper::RopeLayout;

/// Cosines and sines for every position of a context.
#[derive(Debug)]
pub(crate) struct Rotary {
    /// `[context, head_dim / 2]`.
    cosines: Tensor,
    sines: Tensor,
    layout: RopeLayout,
}

impl Rotary {
    /// `frequencies` in radians per position, `head_dim / 2` of them.
    pub(crate) fn new(frequencies: &[f64], context: usize, layout: RopeLayout, device: &Device) -> Result<Self> {
        let angles = || (0..context).flat_map(|position| frequencies.iter().map(move |f| position as f64 * f));
        let shape = (context, frequencies.len());
        let cosines: Vec<f32> = angles().map(|angle| angle.cos() as f32).collect();
        let sines: Vec<f32> = angles().map(|angle| angle.sin() as f32).collect();
        Ok(Self {
            cosines: Tensor::from_vec(cosines, shape, device)?,
            sines: Tensor::from_vec(sines, shape, device)?,
            layout,
        })
    }

    /// Rotates `[1, heads, tokens, head_dim]` whose first token is at `position`.
    pub(crate) fn forward(&self, x: &Tensor, position: usize) -> Result<Tensor> {
        let tokens = x.dim(2)?;
        let cosines = self.cosines.narrow(0, position, tokens)?;
        let sines = self.sines.narrow(0, position, tokens)?;
        let x = x.contiguous()?;
        Ok(match self.layout {
            RopeLayout::Half => candle_nn::rotary_emb::rope(&x, &cosines, &sines)?,
            RopeLayout::Interleaved => candle_nn::rotary_emb::rope_i(&x, &cosines, &sines)?,
        })
    }
}
