//! The decoder: embedding, layers, norm, output projection; whatever the architecture.

use anyhow::{Result, ensure};
use candle_core::Tensor;
use formats::HyperParameters;
use formats::hyper::Rope;

use crate::cache::{KvCache, LayerCache};
use crate::description::{self, Description};
use crate::layers::{Attention, AttentionShape, Embedding, Linear, LoadNorm, Mlp, RmsNorm, Rotary, Span};
use crate::weights::Weights;

/// Tokens that are computed at a time, at most.
const CHUNK: usize = 256;
/// Tokens whose logits are in memory at a time, at most: a vocabulary has up to some hundred thousand.
const LOGITS: usize = 64;
/// Attention scores of one layer that may be in memory at a time: at long positions fewer tokens are computed at once.
const MAX_SCORES: usize = 1 << 25;

/// The token embedding.
const EMBEDDING: &str = "model.embed_tokens.weight";

/// A decoder with its weights.
#[derive(Debug)]
pub(crate) struct Decoder {
    embedding: Embedding,
    embedding_scale: Option<f64>,
    heads: usize,
    vocabulary: usize,
    layers: Vec<Layer>,
    norm: RmsNorm,
    output: Linear,
    rotary: Rotary,
    rotary_sliding: Option<Rotary>,
}

#[derive(Debug)]
struct Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    attention_post_norm: Option<RmsNorm>,
    mlp_norm: RmsNorm,
    mlp: Mlp,
    mlp_post_norm: Option<RmsNorm>,
    sliding: bool,
}

impl Decoder {
    pub(crate) fn load(weights: &Weights, hyper: &HyperParameters, context: usize) -> Result<Self> {
        let (vocabulary, hidden) = (hyper.vocabulary as usize, hyper.hidden as usize);
        let description = description::of(hyper.architecture);
        let rotary = |rope: &Rope, factors: Option<Vec<f32>>| {
            let mut frequencies = rope.frequencies(hyper.head_dim);
            for (frequency, factor) in frequencies.iter_mut().zip(factors.unwrap_or_default()) {
                *frequency /= f64::from(factor);
            }
            Rotary::new(&frequencies, context, hyper.rope_layout, &weights.device)
        };
        let factors = weights.numbers("model.rope_freqs.weight", hyper.head_dim as usize / 2)?;
        Ok(Self {
            embedding: weights.embedding(EMBEDDING, vocabulary, hidden)?,
            embedding_scale: hyper.embedding_scale,
            heads: hyper.heads as usize,
            vocabulary,
            layers: (0..hyper.layers as usize)
                .map(|index| Layer::load(weights, hyper, description, index))
                .collect::<Result<_>>()?,
            norm: RmsNorm::load(weights, "model.norm", hidden, hyper.norm_epsilon, hyper.norm_offset)?,
            output: if hyper.tied || !weights.contains("lm_head.weight") {
                weights.tied(EMBEDDING, vocabulary, hidden)?
            } else {
                weights.linear("lm_head", hidden, vocabulary)?
            },
            rotary: rotary(&hyper.rope, factors)?,
            rotary_sliding: hyper.rope_sliding.as_ref().map(|rope| rotary(rope, None)).transpose()?,
        })
    }

    /// Appends tokens to the cache and gives the logits after the last of them, `[vocabulary]`.
    ///
    /// `go_on` is asked between chunks; where it says no the answer is `None` and the cache ends with the last chunk.
    pub(crate) fn prefill(
        &self,
        tokens: &[u32],
        cache: &mut KvCache,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<f32>>> {
        let mut last = None;
        let mut rest = tokens;
        while !rest.is_empty() {
            if !go_on() {
                return Ok(None);
            }
            let (chunk, after) = rest.split_at(self.chunk(cache).min(rest.len()));
            last = Some(self.stream(chunk, cache)?);
            rest = after;
        }
        let Some(stream) = last else { return Ok(None) };
        let hidden = stream.narrow(0, stream.dim(0)? - 1, 1)?;
        Ok(Some(self.logits(&hidden)?.squeeze(0)?.to_vec1()?))
    }

    /// Tokens of the vocabulary.
    pub(crate) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Appends tokens to the cache and gives `each` the logits after every one of them, `[vocabulary]`, in order.
    ///
    /// `go_on` is asked between chunks; where it says no the answer is `false` and the cache ends with the last chunk.
    pub(crate) fn evaluate(
        &self,
        tokens: &[u32],
        cache: &mut KvCache,
        go_on: &dyn Fn() -> bool,
        mut each: impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<bool> {
        let mut rest = tokens;
        while !rest.is_empty() {
            if !go_on() {
                return Ok(false);
            }
            let (chunk, after) = rest.split_at(self.chunk(cache).min(rest.len()));
            rest = after;
            let stream = self.stream(chunk, cache)?;
            for at in (0..chunk.len()).step_by(LOGITS) {
                let part = stream.narrow(0, at, LOGITS.min(chunk.len() - at))?;
                let logits = self.logits(&part)?;
                let (vocabulary, logits) = (logits.dim(1)?, logits.flatten_all()?.to_vec1::<f32>()?);
                logits.chunks_exact(vocabulary).try_for_each(&mut each)?;
            }
        }
        Ok(true)
    }

    /// How many tokens to compute next.
    fn chunk(&self, cache: &KvCache) -> usize {
        (MAX_SCORES / (self.heads * (cache.len() + CHUNK))).clamp(1, CHUNK)
    }

    fn logits(&self, stream: &Tensor) -> Result<Tensor> {
        self.output.forward(&self.norm.forward(stream)?)
    }

    /// The residual stream after the last layer, `[tokens, hidden]`.
    fn stream(&self, tokens: &[u32], cache: &mut KvCache) -> Result<Tensor> {
        let span = Span { position: cache.len(), tokens: tokens.len() };
        let room = cache.context() - cache.len();
        ensure!(tokens.len() <= room, "{} tokens do not fit into the {room} that the context has left", tokens.len());
        let mut stream = self.embedding.forward(tokens)?;
        if let Some(scale) = self.embedding_scale {
            stream = (stream * scale)?;
        }
        for (layer, cache) in self.layers.iter().zip(&mut cache.layers) {
            let rotary = self.rotary_sliding.as_ref().filter(|_| layer.sliding).unwrap_or(&self.rotary);
            stream = layer.forward(&stream, span, rotary, cache)?;
        }
        cache.advance(tokens);
        Ok(stream)
    }
}

impl Layer {
    fn load(weights: &Weights, hyper: &HyperParameters, description: Description, index: usize) -> Result<Self> {
        let hidden = hyper.hidden as usize;
        let prefix = format!("model.layers.{index}");
        let norm =
            |name: &str, width: usize| RmsNorm::load(weights, name, width, hyper.norm_epsilon, hyper.norm_offset);
        let layer_norm = |name: &str| norm(&format!("{prefix}.{name}"), hidden);
        let head_norm = |name: &str| norm(name, hyper.head_dim as usize);
        let sliding = hyper.sliding[index];
        let shape = AttentionShape {
            heads: hyper.heads as usize,
            kv_heads: hyper.kv_heads as usize,
            head_dim: hyper.head_dim as usize,
            scale: hyper.attention_scale,
            window: hyper.sliding_window.filter(|_| sliding).map(|window| window as usize),
        };
        let head_norms: Option<&LoadNorm<'_>> = if description.head_norms { Some(&head_norm) } else { None };
        Ok(Self {
            attention_norm: layer_norm(description.attention_norm)?,
            attention: Attention::load(weights, &format!("{prefix}.self_attn"), hidden, shape, head_norms)?,
            attention_post_norm: description.attention_post_norm.map(layer_norm).transpose()?,
            mlp_norm: layer_norm(description.mlp_norm)?,
            mlp: Mlp::load(weights, &format!("{prefix}.mlp"), hidden, hyper.intermediate as usize, hyper.activation)?,
            mlp_post_norm: description.mlp_post_norm.map(layer_norm).transpose()?,
            sliding,
        })
    }

    fn forward(&self, x: &Tensor, span: Span, rotary: &Rotary, cache: &mut LayerCache) -> Result<Tensor> {
        let attended = self.attention.forward(&self.attention_norm.forward(x)?, span, rotary, cache)?;
        let x = (x + post(self.attention_post_norm.as_ref(), attended)?)?;
        let transformed = self.mlp.forward(&self.mlp_norm.forward(&x)?)?;
        Ok((&x + post(self.mlp_post_norm.as_ref(), transformed)?)?)
    }
}

fn post(norm: Option<&RmsNorm>, x: Tensor) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&x),
        None => Ok(x),
    }
}
