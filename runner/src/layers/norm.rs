//! RMS norm.

use anyhow::Result;
use architectures::Norm;
use candle_core::Tensor;

use crate::weights::Weights;

/// `x / sqrt(mean(x²) + ε) · (w + offset)` over the last dimension.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    weight: Tensor,
    epsilon: f32,
}

impl RmsNorm {
    pub(crate) fn load(weights: &Weights, norm: &Norm, width: usize) -> Result<Self> {
        let weight = weights.float(&norm.weight, &[width])?;
        let weight = if norm.offset == 0.0 { weight } else { (weight + norm.offset)? };
        Ok(Self { weight, epsilon: norm.epsilon as f32 })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(candle_nn::ops::rms_norm(&x.contiguous()?, &self.weight, self.epsilon)?)
    }
}
