//! RMS norm.

use anyhow::Result;
use candle_core::Tensor;

use crate::weights::Weights;

/// `x / sqrt(mean(x²) + ε) · (w + offset)` over the last dimension.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    weight: Tensor,
    epsilon: f32,
}

impl RmsNorm {
    pub(crate) fn load(weights: &Weights, name: &str, width: usize, epsilon: f64, offset: f64) -> Result<Self> {
        let weight = weights.float(&format!("{name}.weight"), &[width])?;
        let weight = if offset == 0.0 { weight } else { (weight + offset)? };
        Ok(Self { weight, epsilon: epsilon as f32 })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(candle_nn::ops::rms_norm(&x.contiguous()?, &self.weight, self.epsilon)?)
    }
}
