//! The decoder: embedding, layers, norm, output projection, as a blueprint says.

use std::ops::Range;

use anyhow::Result;
use architectures::{Blueprint, Ffn, HeadLayout, Mixer, Norm, Rope};
use candle_core::{Device, Tensor};
use protocol::limits::DEVICE_SCORES;

use crate::cache::KvCache;
use crate::layers::{Attention, Embedding, Linear, Mlp, Part, Pass, RmsNorm, Rotary};
use crate::weights::Weights;

/// Tokens whose logits are in memory at a time, at most: a vocabulary has up to some hundred thousand.
const LOGITS: usize = 64;

/// A decoder with its weights.
#[derive(Debug)]
pub(crate) struct Decoder {
    embedding: Embedding,
    embedding_scale: Option<f64>,
    /// The most query heads of any layer.
    heads: usize,
    vocabulary: usize,
    layers: Vec<Layer>,
    norm: RmsNorm,
    output: Linear,
    output_scale: Option<f64>,
    /// How positions are seen, each way that some layer has.
    views: Vec<View>,
    device: Device,
}

/// How a layer sees positions.
#[derive(Debug)]
struct View {
    /// What the rotation was made from, the size of heads, and how they lie.
    key: (Option<Rope>, u64, HeadLayout),
    rotary: Option<Rotary>,
    window: Option<usize>,
}

/// The residual stream after the last layer, `[tokens, hidden]`, of all tokens of a pass.
#[derive(Debug)]
pub(crate) struct Stream(Tensor);

#[derive(Debug)]
struct Layer {
    attention: Attention,
    attention_residual: Residual,
    mlp: Mlp,
    mlp_residual: Residual,
    /// Its place in [`Decoder::views`].
    view: usize,
}

/// `x + scale · after(part(before(x)))`.
#[derive(Debug)]
struct Residual {
    before: Option<RmsNorm>,
    after: Option<RmsNorm>,
    scale: Option<f64>,
}

impl Decoder {
    pub(crate) fn load(weights: &Weights, blueprint: &Blueprint) -> Result<Self> {
        let (vocabulary, hidden) = (blueprint.vocabulary as usize, blueprint.hidden as usize);
        let mut views = Vec::new();
        let layers = blueprint.layers.iter().map(|layer| Layer::load(weights, layer, hidden, &mut views));
        let decoder = Self {
            layers: layers.collect::<Result<_>>()?,
            embedding: weights.embedding(&blueprint.embedding.weight, vocabulary, hidden)?,
            embedding_scale: blueprint.embedding.scale,
            heads: blueprint.attentions().map(|attention| attention.heads as usize).max().unwrap_or(1),
            vocabulary,
            norm: RmsNorm::load(weights, &blueprint.norm, hidden)?,
            output: weights.linear(&blueprint.output.projection, hidden, vocabulary, None)?,
            output_scale: blueprint.output.scale,
            views,
            device: weights.device.clone(),
        };
        weights.check_adapters()?;
        Ok(decoder)
    }

    /// Tokens of the vocabulary.
    pub(crate) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Where it computes.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// How many of `tokens` to append to a sequence in one pass, at most. On the CPU memory does not depend on it.
    pub(crate) fn chunk(&self, cache: &KvCache, tokens: usize) -> usize {
        if self.device.is_cpu() {
            tokens
        } else {
            (DEVICE_SCORES / (self.heads * (cache.len() + tokens))).clamp(1, tokens)
        }
    }

    /// Appends each part's tokens to its cache, all in one pass.
    ///
    /// # Errors
    /// Where tokens do not fit or are not in the vocabulary. After an error caches have their old length.
    pub(crate) fn forward(&self, parts: &mut [Part<'_>]) -> Result<Stream> {
        let mut tokens = Vec::new();
        for part in parts.iter() {
            part.cache.check_room(part.tokens.len())?;
            tokens.extend_from_slice(part.tokens);
        }
        let pass = |view: &View| Pass::new(parts, view.rotary.as_ref(), view.window, &self.device);
        let passes = self.views.iter().map(pass).collect::<Result<Vec<_>>>()?;
        let mut stream = self.embedding.forward(&tokens)?;
        if let Some(scale) = self.embedding_scale {
            stream = (stream * scale)?;
        }
        for (index, layer) in self.layers.iter().enumerate() {
            stream = layer.forward(&stream, parts, index, &passes[layer.view])?;
        }
        for part in parts {
            part.cache.advance(part.tokens);
        }
        Ok(Stream(stream))
    }

    /// The logits after some tokens of a pass, `[tokens][vocabulary]`.
    pub(crate) fn logits(&self, stream: &Stream, tokens: &[usize]) -> Result<Vec<Vec<f32>>> {
        if tokens.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<u32> = tokens.iter().map(|token| *token as u32).collect();
        let rows = Tensor::new(rows, &self.device)?;
        Ok(self.project(&stream.0.index_select(&rows, 0)?)?.to_vec2()?)
    }

    /// Gives `each` the logits after every token of `tokens`, `[vocabulary]`, in order.
    pub(crate) fn each_logits(
        &self,
        stream: &Stream,
        tokens: Range<usize>,
        mut each: impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        for at in tokens.clone().step_by(LOGITS) {
            let part = stream.0.narrow(0, at, LOGITS.min(tokens.end - at))?;
            let logits = self.project(&part)?.flatten_all()?.to_vec1::<f32>()?;
            logits.chunks_exact(self.vocabulary).try_for_each(&mut each)?;
        }
        Ok(())
    }

    /// The normed hidden states of some tokens of a pass, `[tokens][hidden]`.
    pub(crate) fn hidden(&self, stream: &Stream, tokens: Range<usize>) -> Result<Vec<Vec<f32>>> {
        Ok(self.normed(&stream.0.narrow(0, tokens.start, tokens.len())?)?.to_vec2()?)
    }

    /// Logits of a stream.
    fn project(&self, stream: &Tensor) -> Result<Tensor> {
        scaled(self.output.forward(&self.normed(stream)?)?, self.output_scale)
    }

    fn normed(&self, stream: &Tensor) -> Result<Tensor> {
        self.norm.forward(stream)
    }
}

impl View {
    /// The place of a layer's view among all; it is added where it is the first of its kind.
    fn of(weights: &Weights, attention: &architectures::Attention, views: &mut Vec<Self>) -> Result<usize> {
        let key = (attention.rope.clone(), attention.head_dim, attention.layout);
        let window = attention.window.map(|window| window as usize);
        if let Some(place) = views.iter().position(|view| view.key == key && view.window == window) {
            return Ok(place);
        }
        let rotary = attention.rope.as_ref().map(|rope| -> Result<Rotary> {
            let mut frequencies = rope.frequencies(attention.head_dim);
            if let Some(divisors) = &rope.divisors {
                let divisors = weights.numbers(divisors, frequencies.len())?;
                frequencies.iter_mut().zip(divisors).for_each(|(frequency, divisor)| *frequency /= f64::from(divisor));
            }
            Ok(Rotary::new(frequencies, attention.layout))
        });
        views.push(Self { key, rotary: rotary.transpose()?, window });
        Ok(views.len() - 1)
    }
}

impl Layer {
    fn load(weights: &Weights, layer: &architectures::Layer, hidden: usize, views: &mut Vec<View>) -> Result<Self> {
        let (Mixer::Attention(attention), Ffn::Gated(gated)) = (&layer.mixer, &layer.ffn);
        Ok(Self {
            attention: Attention::load(weights, attention, hidden)?,
            attention_residual: Residual::load(weights, &layer.mixer_residual, hidden)?,
            mlp: Mlp::load(weights, gated, hidden)?,
            mlp_residual: Residual::load(weights, &layer.ffn_residual, hidden)?,
            view: View::of(weights, attention, views)?,
        })
    }

    fn forward(&self, x: &Tensor, parts: &mut [Part<'_>], index: usize, pass: &Pass) -> Result<Tensor> {
        let x = self.attention_residual.around(x, |x| self.attention.forward(x, parts, index, pass))?;
        self.mlp_residual.around(&x, |x| self.mlp.forward(x))
    }
}

impl Residual {
    fn load(weights: &Weights, residual: &architectures::Residual, hidden: usize) -> Result<Self> {
        let load = |norm: &Option<Norm>| norm.as_ref().map(|norm| RmsNorm::load(weights, norm, hidden)).transpose();
        Ok(Self { before: load(&residual.before)?, after: load(&residual.after)?, scale: residual.scale })
    }

    /// Adds what a part of a layer makes of the stream to it.
    fn around(&self, x: &Tensor, part: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let made = match &self.before {
            Some(norm) => part(&norm.forward(x)?)?,
            None => part(x)?,
        };
        let made = match &self.after {
            Some(norm) => norm.forward(&made)?,
            None => made,
        };
        Ok((x + scaled(made, self.scale)?)?)
    }
}

fn scaled(x: Tensor, scale: Option<f64>) -> Result<Tensor> {
    Ok(match scale {
        Some(scale) => (x * scale)?,
        None => x,
    })
}
