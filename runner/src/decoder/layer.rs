//! A layer: a mixer and a feed-forward network with their residual connections.

use anyhow::{Context, Result};

use crate::backend::{Backend, Map, StageSequences};
use crate::layers::{Ffn, LayerStreams, LearnedResidual, Loader, Mixer, Pass, Residual, TokenInput};

#[derive(Debug)]
pub(super) struct Layer<B: Backend> {
    mixer: Option<Mixer<B>>,
    /// The second mixer, and the factor of its output.
    second_mixer: Option<(Mixer<B>, f32)>,
    mixer_residual: Residual<B>,
    learned_residual: Option<LearnedResidual<B>>,
    ffn: Option<Ffn<B>>,
    ffn_residual: Residual<B>,
    /// Whether the mixer and the network get the same rows.
    parallel: bool,
    token_input: Option<TokenInput<B>>,
    scale: Option<f32>,
    streams: Option<LayerStreams<B>>,
}

/// The place of a layer in its stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerPlace {
    /// Index of the layer.
    pub(super) layer: usize,
    /// Index of the states of its mixer: its own, or those of an earlier layer whose keys it reads.
    pub(super) states: usize,
    /// Index of the states of its second mixer, if it has one.
    pub(super) second_states: Option<usize>,
}

impl<B: Backend> Layer<B> {
    pub(super) fn load(loader: &Loader<'_, B>, layer: &architectures::Layer, causal: bool) -> Result<Self> {
        let second_mixer = |own: &architectures::SecondMixer| -> Result<(Mixer<B>, f32)> {
            let mixer = Mixer::load(loader, &own.mixer, causal)?;
            Ok((mixer.context("invariant: the second mixer is one")?, own.scale as f32))
        };
        Ok(Self {
            mixer: Mixer::load(loader, &layer.mixer, causal)?,
            second_mixer: layer.second_mixer.as_deref().map(second_mixer).transpose()?,
            mixer_residual: Residual::load(loader, &layer.mixer_residual)?,
            learned_residual: layer
                .learned_residual
                .as_ref()
                .map(|own| LearnedResidual::load(loader, own))
                .transpose()?,
            streams: layer
                .streams
                .as_ref()
                .zip(loader.streams)
                .map(|(own, count)| LayerStreams::load(loader, own, count))
                .transpose()?,
            ffn: Ffn::load(loader, &layer.ffn)?,
            ffn_residual: Residual::load(loader, &layer.ffn_residual)?,
            parallel: layer.parallel,
            token_input: layer.token_input.as_ref().map(|own| TokenInput::load(loader, own)).transpose()?,
            scale: layer
                .scale
                .as_ref()
                .map(|scale| Ok::<_, anyhow::Error>(loader.weights.numbers(scale, &[1])?[0]))
                .transpose()?,
        })
    }

    /// Computes the residual stream after the layer, `[tokens, hidden]`, from the one before it; or
    /// all streams, `[tokens, streams · hidden]`.
    /// `own` is the layer's embedding of the tokens, if it has one.
    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: B::Act,
        own: Option<&B::Act>,
        (sequences, place): (&mut StageSequences<'_, B>, LayerPlace),
        tokens: usize,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let token_input = |x: &B::Act| -> Result<Option<B::Act>> {
            let Some(input) = &self.token_input else { return Ok(None) };
            input.forward(backend, x, own.context("invariant: there are embeddings of layers")?).map(Some)
        };
        if let Some(streams) = &self.streams {
            let predicted = streams.predict(backend, &x)?;
            let made = self.parts(pass, streams.active(backend, &predicted)?, (sequences, place), tokens)?;
            let corrected = streams.correct(backend, &predicted, &made)?;
            return match token_input(&streams.for_token_input(backend, &corrected)?)? {
                Some(made) => streams.add_behind_first(backend, &corrected, &made),
                None => Ok(corrected),
            };
        }
        let mut x = self.parts(pass, x, (sequences, place), tokens)?;
        if let Some(made) = token_input(&x)? {
            x = backend.map(x, Map::Add(&made, 1.0))?;
        }
        match self.scale {
            Some(scale) => backend.map(x, Map::Scale(scale)),
            None => Ok(x),
        }
    }

    /// Computes the mixer and the feed-forward network.
    fn parts(
        &self,
        pass: &Pass<'_, B>,
        x: B::Act,
        (sequences, place): (&mut StageSequences<'_, B>, LayerPlace),
        tokens: usize,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let mut learned = None;
        let mut mix = |x: &B::Act| -> Result<Option<B::Act>> {
            let Some(mixer) = &self.mixer else { return Ok(None) };
            let mut mixers = |x: &B::Act| -> Result<B::Act> {
                learned = self.learned_residual.as_ref().map(|own| own.forward(backend, x)).transpose()?;
                let mixed = mixer.forward(pass, x, &mut sequences.layer(place.layer, place.states))?;
                let Some((second, scale)) = &self.second_mixer else { return Ok(mixed) };
                let states = place.second_states.context("invariant: the second mixer has states")?;
                let other = second.forward(pass, x, &mut sequences.layer(place.layer, states))?;
                backend.map(mixed, Map::Add(&other, *scale))
            };
            self.mixer_residual.made(backend, x, &mut mixers).map(Some)
        };
        let ffn = |x: &B::Act| -> Result<Option<B::Act>> {
            let Some(ffn) = &self.ffn else { return Ok(None) };
            self.ffn_residual.made(backend, x, |x| ffn.forward(pass, x, tokens)).map(Some)
        };
        if self.parallel {
            let (mixed, made) = (mix(&x)?, ffn(&x)?);
            let x = self.mixer_residual.add(backend, x, mixed.as_ref())?;
            return self.ffn_residual.add(backend, x, made.as_ref());
        }
        let mixed = mix(&x)?;
        let mut x = self.mixer_residual.add(backend, x, mixed.as_ref())?;
        if let Some((own, learned)) = self.learned_residual.as_ref().zip(learned) {
            x = own.add(backend, x, &learned)?;
        }
        let made = ffn(&x)?;
        self.ffn_residual.add(backend, x, made.as_ref())
    }
}
