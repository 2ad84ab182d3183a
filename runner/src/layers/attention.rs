//! Attention with grouped heads, a KV cache, and a window where the layer slides.

use anyhow::Result;
use candle_core::{Device, Tensor};

use crate::cache::LayerCache;
use crate::layers::{Linear, RmsNorm, Rotary};
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

/// Where the tokens of a forward pass are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Position of the first.
    pub(crate) position: usize,
    /// How many.
    pub(crate) tokens: usize,
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

    /// `x` of `[tokens, hidden]` to the same; appends keys and values to the cache.
    pub(crate) fn forward(&self, x: &Tensor, span: Span, rotary: &Rotary, cache: &mut LayerCache) -> Result<Tensor> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.shape;
        let query = self.heads(&self.query, self.query_norm.as_ref(), x, heads, span)?;
        let key = self.heads(&self.key, self.key_norm.as_ref(), x, kv_heads, span)?;
        let query = rotary.forward(&query, span.position)?;
        let key = rotary.forward(&key, span.position)?;
        let value = self.heads(&self.value, None, x, kv_heads, span)?;
        cache.append(&key.squeeze(0)?, &value.squeeze(0)?, span.position)?;

        // With a single token the window is a range of the cache; with several each has its own, so a mask is needed.
        let end = span.position + span.tokens;
        let visible = self.shape.window.map_or(end, |window| end.min(window.saturating_add(span.tokens - 1)));
        let start = end - visible;
        let keys = cache.keys.narrow(1, start, visible)?;
        let values = cache.values.narrow(1, start, visible)?;
        // Query heads that share a key head are rows of one product.
        let group = heads / kv_heads;
        let query = (query.reshape((kv_heads, group * span.tokens, head_dim))? * self.shape.scale)?;
        let scores = query.matmul(&keys.transpose(1, 2)?)?;
        let scores = if span.tokens == 1 {
            scores
        } else {
            let mask = mask(span, start, visible, self.shape.window, scores.device())?;
            let by_head = scores.reshape((heads, span.tokens, visible))?.broadcast_add(&mask)?;
            by_head.reshape((kv_heads, group * span.tokens, visible))?
        };
        let weights = candle_nn::ops::softmax_last_dim(&scores)?;
        let mixed = weights.matmul(&values)?;
        let joined =
            mixed.reshape((heads, span.tokens, head_dim))?.transpose(0, 1)?.reshape((span.tokens, heads * head_dim))?;
        self.output.forward(&joined)
    }

    /// `[tokens, hidden]` to `[1, heads, tokens, head_dim]`, normed by head where there is a norm.
    fn heads(&self, linear: &Linear, norm: Option<&RmsNorm>, x: &Tensor, heads: usize, span: Span) -> Result<Tensor> {
        let projected = linear.forward(x)?.reshape((span.tokens, heads, self.shape.head_dim))?;
        let normed = match norm {
            Some(norm) => norm.forward(&projected)?,
            None => projected,
        };
        Ok(normed.transpose(0, 1)?.contiguous()?.unsqueeze(0)?)
    }
}

/// `[tokens, visible]`: 0 where a query sees a key, else minus infinity.
fn mask(span: Span, start: usize, visible: usize, window: Option<usize>, device: &Device) -> Result<Tensor> {
    let sees = |query: usize, key: usize| key <= query && window.is_none_or(|window| query - key < window);
    let cell = |query: usize, key: usize| if sees(query, key) { 0.0 } else { f32::NEG_INFINITY };
    let cells: Vec<f32> = (span.position..span.position + span.tokens)
        .flat_map(|query| (start..start + visible).map(move |key| cell(query, key)))
        .collect();
    Ok(Tensor::from_vec(cells, (span.tokens, visible), device)?)
}
