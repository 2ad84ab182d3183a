//! A layer: a mixer and a feed-forward network with their residual connections.

use anyhow::Result;

use crate::backend::{Backend, LayerSequences};
use crate::layers::{Ffn, Loader, Mixer, Pass, Residual};

#[derive(Debug)]
pub(super) struct Layer<B: Backend> {
    mixer: Mixer<B>,
    mixer_residual: Residual<B>,
    ffn: Ffn<B>,
    ffn_residual: Residual<B>,
    /// Whether the mixer and the network get the same rows.
    parallel: bool,
}

impl<B: Backend> Layer<B> {
    pub(super) fn load(loader: &Loader<'_, B>, layer: &architectures::Layer, causal: bool) -> Result<Self> {
        Ok(Self {
            mixer: Mixer::load(loader, &layer.mixer, causal)?,
            mixer_residual: Residual::load(loader, &layer.mixer_residual)?,
            ffn: Ffn::load(loader, &layer.ffn)?,
            ffn_residual: Residual::load(loader, &layer.ffn_residual)?,
            parallel: layer.parallel,
        })
    }

    /// Computes the residual stream after the layer, `[tokens, hidden]`, from the one before it.
    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: B::Act,
        sequences: &mut LayerSequences<'_, B>,
        tokens: usize,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let mixed = self.mixer_residual.made(backend, &x, |x| self.mixer.forward(pass, x, sequences))?;
        let ffn = |x: &B::Act| self.ffn.forward(pass, x, tokens);
        if self.parallel {
            let made = self.ffn_residual.made(backend, &x, ffn)?;
            let x = self.mixer_residual.add(backend, x, &mixed)?;
            return self.ffn_residual.add(backend, x, &made);
        }
        let x = self.mixer_residual.add(backend, x, &mixed)?;
        let made = self.ffn_residual.made(backend, &x, ffn)?;
        self.ffn_residual.add(backend, x, &made)
    }
}
