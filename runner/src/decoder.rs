//! The decoder: embedding, layers, norm, output projection; whatever the architecture.

use std::ops::Range;

use anyhow::Result;
use candle_core::{Device, Tensor};
use formats::HyperParameters;
use formats::hyper::Rope;

use crate::cache::KvCache;
use crate::description::{self, Description};
use crate::layers::{Attention, AttentionShape, Embedding, Linear, LoadNorm, Mlp, Part, Pass, RmsNorm, Rotary};
use crate::weights::Weights;

/// Tokens whose logits are in memory at a time, at most: a vocabulary has up to some hundred thousand.
const LOGITS: usize = 64;
/// Attention scores of one layer that may be in memory of a device at a time.
const MAX_SCORES: usize = 1 << 25;

/// The token embedding.
const EMBEDDING: &str = "model.embed_tokens.weight";
/// The output projection.
const OUTPUT: &str = "lm_head";

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
    /// How many positions layers that slide see.
    window: Option<usize>,
    device: Device,
}

/// The residual stream after the last layer, `[tokens, hidden]`, of all tokens of a pass.
#[derive(Debug)]
pub(crate) struct Stream(Tensor);

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
    pub(crate) fn load(weights: &Weights, hyper: &HyperParameters) -> Result<Self> {
        let (vocabulary, hidden) = (hyper.vocabulary as usize, hyper.hidden as usize);
        let description = description::of(hyper.architecture);
        let rotary = |rope: &Rope, factors: Option<Vec<f32>>| {
            let mut frequencies = rope.frequencies(hyper.head_dim);
            for (frequency, factor) in frequencies.iter_mut().zip(factors.unwrap_or_default()) {
                *frequency /= f64::from(factor);
            }
            Rotary::new(frequencies, hyper.rope_layout)
        };
        let factors = weights.numbers("model.rope_freqs.weight", hyper.head_dim as usize / 2)?;
        let decoder = Self {
            embedding: weights.embedding(EMBEDDING, vocabulary, hidden)?,
            embedding_scale: hyper.embedding_scale,
            heads: hyper.heads as usize,
            vocabulary,
            layers: (0..hyper.layers as usize)
                .map(|index| Layer::load(weights, hyper, description, index))
                .collect::<Result<_>>()?,
            norm: RmsNorm::load(weights, "model.norm", hidden, hyper.norm_epsilon, hyper.norm_offset)?,
            output: if hyper.tied || !weights.contains("lm_head.weight") {
                weights.tied(OUTPUT, EMBEDDING, vocabulary, hidden)?
            } else {
                weights.linear(OUTPUT, hidden, vocabulary)?
            },
            rotary: rotary(&hyper.rope, factors),
            rotary_sliding: hyper.rope_sliding.as_ref().map(|rope| rotary(rope, None)),
            window: hyper.sliding_window.map(|window| window as usize),
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
            (MAX_SCORES / (self.heads * (cache.len() + tokens))).clamp(1, tokens)
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
        let pass = Pass::new(parts, &self.rotary, None, &self.device)?;
        let sliding = self.sliding(parts)?;
        let mut stream = self.embedding.forward(&tokens)?;
        if let Some(scale) = self.embedding_scale {
            stream = (stream * scale)?;
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let pass = sliding.as_ref().filter(|_| layer.sliding).unwrap_or(&pass);
            stream = layer.forward(&stream, parts, index, pass)?;
        }
        for part in parts {
            part.cache.advance(part.tokens);
        }
        Ok(Stream(stream))
    }

    /// What layers that slide share, where there are any.
    fn sliding(&self, parts: &[Part<'_>]) -> Result<Option<Pass>> {
        if !self.layers.iter().any(|layer| layer.sliding) {
            return Ok(None);
        }
        let rotary = self.rotary_sliding.as_ref().unwrap_or(&self.rotary);
        Ok(Some(Pass::new(parts, rotary, self.window, &self.device)?))
    }

    /// The logits after some tokens of a pass, `[tokens][vocabulary]`.
    pub(crate) fn logits(&self, stream: &Stream, tokens: &[usize]) -> Result<Vec<Vec<f32>>> {
        if tokens.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<u32> = tokens.iter().map(|token| *token as u32).collect();
        let rows = Tensor::new(rows, &self.device)?;
        Ok(self.output.forward(&self.normed(&stream.0.index_select(&rows, 0)?)?)?.to_vec2()?)
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
            let logits = self.output.forward(&self.normed(&part)?)?.flatten_all()?.to_vec1::<f32>()?;
            logits.chunks_exact(self.vocabulary).try_for_each(&mut each)?;
        }
        Ok(())
    }

    /// The normed hidden states of some tokens of a pass, `[tokens][hidden]`.
    pub(crate) fn hidden(&self, stream: &Stream, tokens: Range<usize>) -> Result<Vec<Vec<f32>>> {
        Ok(self.normed(&stream.0.narrow(0, tokens.start, tokens.len())?)?.to_vec2()?)
    }

    fn normed(&self, stream: &Tensor) -> Result<Tensor> {
        self.norm.forward(stream)
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

    fn forward(&self, x: &Tensor, parts: &mut [Part<'_>], index: usize, pass: &Pass) -> Result<Tensor> {
        let attended = self.attention.forward(&self.attention_norm.forward(x)?, parts, index, pass)?;
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
