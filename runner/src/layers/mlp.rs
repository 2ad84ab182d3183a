//! The gated MLP: `down(act(gate(x)) · up(x))`.

use anyhow::Result;
use architectures::{Activation, Gated};
use candle_core::Tensor;

use crate::layers::Linear;
use crate::weights::Weights;

/// A gated MLP.
#[derive(Debug)]
pub(crate) struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl Mlp {
    pub(crate) fn load(weights: &Weights, gated: &Gated, hidden: usize) -> Result<Self> {
        let width = gated.width as usize;
        Ok(Self {
            gate: weights.linear(&gated.gate, hidden, width, None)?,
            up: weights.linear(&gated.up, hidden, width, None)?,
            down: weights.linear(&gated.down, width, hidden, None)?,
            activation: gated.activation,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gate = self.gate.forward(x)?;
        let gate = match self.activation {
            Activation::Silu => gate.silu()?,
            Activation::GeluTanh => gate.gelu()?,
            Activation::Gelu => gate.gelu_erf()?,
        };
        self.down.forward(&(gate * self.up.forward(x)?)?)
    }
}
