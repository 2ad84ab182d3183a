//! The expert that all tokens use beside the chosen ones.

use anyhow::Result;

use super::Loader;
use super::gated::Gated;
use super::plain::Plain;
use crate::backend::{Backend, Map};

/// A network, and the gate that its output is multiplied by.
#[derive(Debug)]
pub(super) struct SharedExpert<B: Backend> {
    network: Network<B>,
    gate: Option<B::Matrix>,
}

#[derive(Debug)]
enum Network<B: Backend> {
    Gated(Gated<B>),
    Plain(Plain<B>),
}

impl<B: Backend> SharedExpert<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::SharedExpert) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let network = match &own.ffn {
            architectures::Network::Gated(own) => Network::Gated(Gated::load(loader, own)?),
            architectures::Network::Plain(own) => Network::Plain(Plain::load(loader, own)?),
        };
        let gate = own.gate.as_ref().map(|gate| weights.matrix(backend, gate, hidden, 1, None)).transpose()?;
        Ok(Self { network, gate })
    }

    pub(super) fn forward(&self, backend: &B, x: &B::Act) -> Result<B::Act> {
        let made = match &self.network {
            Network::Gated(own) => own.forward(backend, x)?,
            Network::Plain(own) => own.forward(backend, x)?,
        };
        let Some(gate) = &self.gate else { return Ok(made) };
        let [gate] = backend.project([gate], x)?;
        backend.map(made, Map::Sigmoid(&gate))
    }
}
