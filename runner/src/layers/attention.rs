//! Attention with grouped heads, a KV cache, and a window where the layer slides.
//!
//! A pass computes runs of tokens of several sequences: the projections take all tokens together, so that weights are
//! read once; each run attends to the cache of its own sequence.

mod host;
mod on_device;

use anyhow::Result;
use architectures::Norm;
use candle_core::{Device, Tensor};

use crate::cache::{KvCache, Storage};
use crate::layers::{Angles, Linear, RmsNorm, Rotary};
use crate::weights::{HeadRows, Weights};

/// The sizes of an attention layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    /// Query heads.
    pub(crate) heads: usize,
    /// Key and value heads.
    pub(crate) kv_heads: usize,
    /// Elements of a head.
    pub(crate) head_dim: usize,
    /// Scores are multiplied by it.
    pub(crate) scale: f64,
    /// How many positions a query sees, its own included.
    pub(crate) window: Option<usize>,
}

/// A run of tokens that are appended to one sequence.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    /// The sequence so far.
    pub(crate) cache: &'a mut KvCache,
    /// The tokens; at least one.
    pub(crate) tokens: &'a [u32],
}

impl Part<'_> {
    fn span(&self) -> Span {
        Span { position: self.cache.len(), tokens: self.tokens.len() }
    }
}

/// Where the tokens of a part are.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Position of the first.
    position: usize,
    /// How many.
    tokens: usize,
}

impl Span {
    /// The first position after the part.
    fn end(self) -> usize {
        self.position + self.tokens
    }

    /// The first position that a token sees; `token` is its place in the part.
    fn first_seen(self, token: usize, window: Option<usize>) -> usize {
        window.map_or(0, |window| (self.position + token + 1).saturating_sub(window))
    }
}

/// What all layers with one window and one rotation share in a pass; made once for it.
#[derive(Debug)]
pub(crate) struct Pass {
    /// None where positions are not told apart.
    angles: Option<Angles>,
    /// For each part of several tokens, what each of them sees. The CPU's kernels need none.
    masks: Vec<Option<Tensor>>,
}

impl Pass {
    /// For these parts, whose tokens have not been appended yet.
    pub(crate) fn new(
        parts: &[Part<'_>],
        rotary: Option<&Rotary>,
        window: Option<usize>,
        device: &Device,
    ) -> Result<Self> {
        let positions: Vec<usize> = parts.iter().flat_map(|part| part.span().position..part.span().end()).collect();
        let masks = if device.is_cpu() {
            Vec::new()
        } else {
            parts.iter().map(|part| on_device::mask(part.span(), window, device)).collect::<Result<_>>()?
        };
        let angles = rotary.map(|rotary| rotary.angles(&positions, device)).transpose()?;
        Ok(Self { angles, masks })
    }
}

/// Attention, from the normed input to the output projection.
#[derive(Debug)]
pub(crate) struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    query_norm: Option<RmsNorm>,
    key_norm: Option<RmsNorm>,
    shape: AttentionShape,
}

/// Queries, keys and values of all tokens of a pass, `[tokens, heads, head_dim]`; not rotated yet.
struct Projected {
    query: Tensor,
    key: Tensor,
    value: Tensor,
}

impl Attention {
    pub(crate) fn load(weights: &Weights, attention: &architectures::Attention, hidden: usize) -> Result<Self> {
        let [heads, kv_heads, head_dim] =
            [attention.heads, attention.kv_heads, attention.head_dim].map(|size| size as usize);
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let rows = Some(HeadRows { layout: attention.layout, head_dim: attention.head_dim });
        let norm = |norm: &Norm| RmsNorm::load(weights, norm, head_dim);
        Ok(Self {
            query: weights.linear(&attention.query, hidden, queries, rows)?,
            key: weights.linear(&attention.key, hidden, keys, rows)?,
            value: weights.linear(&attention.value, hidden, keys, None)?,
            output: weights.linear(&attention.output, queries, hidden, None)?,
            query_norm: attention.query_norm.as_ref().map(norm).transpose()?,
            key_norm: attention.key_norm.as_ref().map(norm).transpose()?,
            shape: AttentionShape {
                heads,
                kv_heads,
                head_dim,
                scale: attention.scale,
                window: attention.window.map(|window| window as usize),
            },
        })
    }

    /// `x` of `[tokens, hidden]`, the tokens of all parts, to the same; appends keys and values to layer `layer` of the
    /// parts' caches.
    pub(crate) fn forward(&self, x: &Tensor, parts: &mut [Part<'_>], layer: usize, pass: &Pass) -> Result<Tensor> {
        let AttentionShape { heads, kv_heads, .. } = self.shape;
        let projected = Projected {
            query: self.heads(&self.query, self.query_norm.as_ref(), x, heads)?,
            key: self.heads(&self.key, self.key_norm.as_ref(), x, kv_heads)?,
            value: self.heads(&self.value, None, x, kv_heads)?,
        };
        let host = parts.iter().all(|part| matches!(part.cache.storage, Storage::Host(_)));
        let mixed = if host {
            host::attend(self.shape, &projected, parts, layer, pass)?
        } else {
            on_device::attend(self.shape, &projected, parts, layer, pass)?
        };
        self.output.forward(&mixed)
    }

    /// `[tokens, hidden]` to `[tokens, heads, head_dim]`, normed by head where there is a norm.
    fn heads(&self, linear: &Linear, norm: Option<&RmsNorm>, x: &Tensor, heads: usize) -> Result<Tensor> {
        let projected = linear.forward(x)?.reshape((x.dim(0)?, heads, self.shape.head_dim))?;
        match norm {
            Some(norm) => norm.forward(&projected),
            None => Ok(projected),
        }
    }
}
