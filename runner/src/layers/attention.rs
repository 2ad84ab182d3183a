//! Attention with grouped heads, a KV cache, and a window where the layer slides.
//!
//! A pass computes runs of tokens of several sequences: the projections take all tokens together, so that weights are
//! read once; each run attends to the cache of its own sequence.

mod host;
mod on_device;

use anyhow::Result;
use candle_core::{Device, Tensor};

use crate::cache::{KvCache, Storage};
use crate::layers::{Angles, Linear, RmsNorm, Rotary};
use crate::weights::Weights;

/// Makes the norm of that name.
pub(crate) type LoadNorm<'a> = dyn Fn(&str) -> Result<RmsNorm> + 'a;

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
    angles: Angles,
    /// For each part of several tokens, what each of them sees. The CPU's kernels need none.
    masks: Vec<Option<Tensor>>,
}

impl Pass {
    /// For these parts, whose tokens have not been appended yet.
    pub(crate) fn new(parts: &[Part<'_>], rotary: &Rotary, window: Option<usize>, device: &Device) -> Result<Self> {
        let positions: Vec<usize> = parts.iter().flat_map(|part| part.span().position..part.span().end()).collect();
        let masks = if device.is_cpu() {
            Vec::new()
        } else {
            parts.iter().map(|part| on_device::mask(part.span(), window, device)).collect::<Result<_>>()?
        };
        Ok(Self { angles: rotary.angles(&positions, device)?, masks })
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
    /// `norms` makes the norms of q and k heads.
    pub(crate) fn load(
        weights: &Weights,
        prefix: &str,
        hidden: usize,
        shape: AttentionShape,
        norms: Option<&LoadNorm<'_>>,
    ) -> Result<Self> {
        let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        Ok(Self {
            query: weights.linear(&format!("{prefix}.q_proj"), hidden, queries)?,
            key: weights.linear(&format!("{prefix}.k_proj"), hidden, keys)?,
            value: weights.linear(&format!("{prefix}.v_proj"), hidden, keys)?,
            output: weights.linear(&format!("{prefix}.o_proj"), queries, hidden)?,
            query_norm: norms.map(|norm| norm(&format!("{prefix}.q_norm"))).transpose()?,
            key_norm: norms.map(|norm| norm(&format!("{prefix}.k_norm"))).transpose()?,
            shape,
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
