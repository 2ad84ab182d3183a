//! The gated MLP: `down(act(gate(x)) · up(x))`.

use anyhow::Result;
use candle_core::Tensor;
use formats::hyper::Activation;

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
    pub(crate) fn load(
        weights: &Weights,
        prefix: &str,
        hidden: usize,
        intermediate: usize,
        activation: Activation,
    ) -> Result<Self> {
        Ok(Self {
            gate: weights.linear(&format!("{prefix}.gate_proj"), hidden, intermediate)?,
            up: weights.linear(&format!("{prefix}.up_proj"), hidden, intermediate)?,
            down: weights.linear(&format!("{prefix}.down_proj"), intermediate, hidden)?,
            activation,
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
