//! A layer: a mixer and a feed-forward network with their residual connections.

use anyhow::{Context, Result};

use crate::backend::{Backend, Map, StageSequences};
use crate::layers::{
    Ffn, LayerStreams, LayerTokens, LearnedResidual, Loader, Mixer, MixerPlace, NgramInput, Pass, Residual, TokenInput,
};

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
    ngrams: Option<NgramInput<B>>,
}

/// The output of the mixers of a layer.
struct Mixed<B: Backend> {
    /// Before it is added to the stream; `None` if the layer has no mixer.
    output: Option<B::Act>,
    /// The learned residual beside it, if the layer has one.
    learned: Option<B::Act>,
}

/// The place of a layer in its stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerPlace {
    pub(super) mixer: MixerPlace,
    /// Index of the states of its second mixer, if it has one.
    pub(super) second_states: Option<usize>,
    /// Index of the states of its n-grams, if it has them.
    pub(super) ngram_states: Option<usize>,
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
            streams: LayerStreams::load(loader, layer.streams.as_ref(), loader.streams)?,
            ngrams: layer
                .ngrams
                .as_ref()
                .zip(loader.streams)
                .map(|(own, streams)| NgramInput::load(loader, own, streams.count() as usize))
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
    pub(super) fn forward(
        &self,
        pass: &Pass<'_, B>,
        x: B::Act,
        tokens: &LayerTokens<'_, B>,
        (sequences, place): (&mut StageSequences<'_, B>, LayerPlace),
    ) -> Result<B::Act> {
        let backend = pass.backend;
        let token_input = |x: &B::Act| -> Result<Option<B::Act>> {
            let Some(input) = &self.token_input else { return Ok(None) };
            input.forward(backend, x, tokens.own()?).map(Some)
        };
        match &self.streams {
            Some(LayerStreams::Predicted(streams)) => {
                let predicted = streams.predict(backend, &x)?;
                let made = self.parts(pass, streams.active(backend, &predicted)?, (sequences, place), tokens)?;
                let corrected = streams.correct(backend, &predicted, &made)?;
                match token_input(&streams.for_token_input(backend, &corrected)?)? {
                    Some(made) => streams.add_behind_first(backend, &corrected, &made),
                    None => Ok(corrected),
                }
            }
            Some(LayerStreams::Connected(streams)) => {
                let mut x = x;
                if let Some((ngrams, states)) = self.ngrams.as_ref().zip(place.ngram_states) {
                    x = ngrams.add(backend, x, tokens.own()?, &mut sequences.layer(place.mixer.layer, states))?;
                }
                let x = streams.mixer.around(backend, x, |x| Ok(self.mix(pass, x, (sequences, place))?.output))?;
                streams.ffn.around(backend, x, |x| self.network(pass, x, tokens))
            }
            None => {
                let mut x = self.parts(pass, x, (sequences, place), tokens)?;
                if let Some(made) = token_input(&x)? {
                    x = backend.map(x, Map::Add(&made, 1.0))?;
                }
                match self.scale {
                    Some(scale) => backend.map(x, Map::Scale(scale)),
                    None => Ok(x),
                }
            }
        }
    }

    /// Computes the mixer and the feed-forward network, and adds their outputs to the stream.
    fn parts(
        &self,
        pass: &Pass<'_, B>,
        x: B::Act,
        (sequences, place): (&mut StageSequences<'_, B>, LayerPlace),
        tokens: &LayerTokens<'_, B>,
    ) -> Result<B::Act> {
        let backend = pass.backend;
        if self.parallel {
            let (mixed, made) = (self.mix(pass, &x, (sequences, place))?.output, self.network(pass, &x, tokens)?);
            let x = self.mixer_residual.add(backend, x, mixed.as_ref())?;
            return self.ffn_residual.add(backend, x, made.as_ref());
        }
        let Mixed { output, learned } = self.mix(pass, &x, (sequences, place))?;
        let mut x = self.mixer_residual.add(backend, x, output.as_ref())?;
        if let Some((own, learned)) = self.learned_residual.as_ref().zip(learned) {
            x = own.add(backend, x, &learned)?;
        }
        let made = self.network(pass, &x, tokens)?;
        self.ffn_residual.add(backend, x, made.as_ref())
    }

    /// Computes the mixers.
    fn mix(
        &self,
        pass: &Pass<'_, B>,
        x: &B::Act,
        (sequences, place): (&mut StageSequences<'_, B>, LayerPlace),
    ) -> Result<Mixed<B>> {
        let backend = pass.backend;
        let Some(mixer) = &self.mixer else { return Ok(Mixed { output: None, learned: None }) };
        let mut learned = None;
        let output = self.mixer_residual.made(backend, x, |x| {
            learned = self.learned_residual.as_ref().map(|own| own.forward(backend, x)).transpose()?;
            let mixed = mixer.forward(pass, x, sequences, place.mixer)?;
            let Some((second, scale)) = &self.second_mixer else { return Ok(mixed) };
            let states = place.second_states.context("invariant: the second mixer has states")?;
            let other = second.forward(pass, x, sequences, MixerPlace { states, ..place.mixer })?;
            backend.map(mixed, Map::Add(&other, *scale))
        })?;
        Ok(Mixed { output: Some(output), learned })
    }

    /// Computes the output of the feed-forward network, if the layer has one.
    fn network(&self, pass: &Pass<'_, B>, x: &B::Act, tokens: &LayerTokens<'_, B>) -> Result<Option<B::Act>> {
        let Some(ffn) = &self.ffn else { return Ok(None) };
        self.ffn_residual.made(pass.backend, x, |x| ffn.forward(pass, x, tokens)).map(Some)
    }
}
