//! A feed-forward network with a gate.

use super::Loader;
use super::linear::Linear;
use crate::backend::{Backend, Map, NormOf};
use anyhow::Result;
use architectures::Activation;

/// `down(norm(act(excess(gate_scale · gate(x))) · up(x)))`.
#[derive(Debug)]
pub(crate) struct Gated<B: Backend> {
    pub(super) gate: Linear<B>,
    pub(super) up: Linear<B>,
    norm: Option<NormOf<B>>,
    pub(super) down: Linear<B>,
    pub(super) activation: Activation,
    gate_scale: Option<f32>,
    /// Number of standard deviations up to which the elements of the gate are 0.
    cutoff: Option<f32>,
}

impl<B: Backend> Gated<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::Gated) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let width = own.width as usize;
        let linear = |own, sizes| Linear::load(loader, own, sizes, None);
        Ok(Self {
            gate: linear(&own.gate, [hidden, width])?,
            up: linear(&own.up, [hidden, width])?,
            norm: own.norm.as_ref().map(|norm| weights.norm(backend, norm, width)).transpose()?,
            down: linear(&own.down, [width, hidden])?,
            activation: own.activation,
            gate_scale: own.gate_scale.map(|scale| scale as f32),
            cutoff: own.cutoff.map(|cutoff| cutoff as f32),
        })
    }

    pub(super) fn forward(&self, backend: &B, x: &B::Act) -> Result<B::Act> {
        let [mut gate, up] = Linear::project(backend, [&self.gate, &self.up], x)?;
        if let Some(scale) = self.gate_scale {
            gate = backend.map(gate, Map::Scale(scale))?;
        }
        if let Some(cutoff) = self.cutoff {
            gate = backend.excess(gate, cutoff)?;
        }
        let mut wide = backend.map(gate, Map::Gate(self.activation, &up))?;
        if let Some(norm) = &self.norm {
            wide = backend.norm(norm, &wide)?;
        }
        let [out] = Linear::project(backend, [&self.down], &wide)?;
        Ok(out)
    }
}
