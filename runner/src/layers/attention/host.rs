//! Attention on the CPU: a few queries by our kernels, which read the cache as it is; many as products of matrices, for
//! which a head's visible window is expanded.

use anyhow::Result;
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Tensor};
use protocol::limits::CPU_SCORES;

use super::{AttentionShape, Part, Pass, Projected, Span};
use crate::cache::{Half, HostCache, Storage};
use crate::kernels;
use crate::kernels::attention::{attend as attend_one, softmax};

/// A part of so many tokens at most is computed token by token.
const FEW: usize = 4;

/// The mixed values of all tokens, `[tokens, heads · head_dim]`.
pub(super) fn attend(
    shape: AttentionShape,
    projected: &Projected,
    parts: &mut [Part<'_>],
    layer: usize,
    pass: &Pass,
) -> Result<Tensor> {
    let AttentionShape { heads, kv_heads, head_dim, scale, window } = shape;
    let numbers = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
    let (mut query, mut key) = (numbers(&projected.query)?, numbers(&projected.key)?);
    let value = numbers(&projected.value)?;
    if let Some(angles) = &pass.angles {
        angles.rotate(&mut query, heads);
        angles.rotate(&mut key, kv_heads);
    }
    for x in &mut query {
        *x *= scale as f32;
    }

    let (width, kv_width) = (heads * head_dim, kv_heads * head_dim);
    let mut out = vec![0.0; query.len()];
    let mut few = Vec::new();
    let mut first = 0;
    for part in parts.iter_mut() {
        let span = part.span();
        let Storage::Host(cache) = &mut part.cache.storage else {
            anyhow::bail!("the KV cache is on another device than the weights");
        };
        let rows = first * kv_width..(first + span.tokens) * kv_width;
        cache.write(layer, Half::Keys, span.position, &key[rows.clone()]);
        cache.write(layer, Half::Values, span.position, &value[rows]);
        let cache = &*cache;
        if span.tokens <= FEW {
            few.extend((0..span.tokens).map(|token| One {
                cache,
                row: first + token,
                from: span.first_seen(token, window),
                to: span.position + token + 1,
            }));
        } else {
            let rows = first * width..(first + span.tokens) * width;
            many(shape, cache, layer, span, &query[rows.clone()], &mut out[rows])?;
        }
        first += span.tokens;
    }
    each(shape, &few, layer, &query, &mut out);
    Ok(Tensor::from_vec(out, (first, width), &Device::Cpu)?)
}

/// A token that is computed on its own.
struct One<'a> {
    cache: &'a HostCache,
    /// Its row among the queries.
    row: usize,
    /// The positions that it sees.
    from: usize,
    to: usize,
}

/// Single tokens, all heads of all of them side by side.
fn each(shape: AttentionShape, tokens: &[One<'_>], layer: usize, query: &[f32], out: &mut [f32]) {
    let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
    if tokens.is_empty() {
        return;
    }
    let mut mixed = vec![0.0; tokens.len() * heads * head_dim];
    kernels::for_rows(&mut mixed, head_dim, |row, mixed| {
        let (one, head) = (&tokens[row / heads], row % heads);
        let rows = |half| one.cache.rows(layer, half, head / (heads / kv_heads), one.from, one.to);
        let query = &query[(one.row * heads + head) * head_dim..][..head_dim];
        attend_one(query, rows(Half::Keys), rows(Half::Values), mixed);
    });
    let width = heads * head_dim;
    for (one, mixed) in tokens.iter().zip(mixed.chunks_exact(width)) {
        out[one.row * width..][..width].copy_from_slice(mixed);
    }
}

/// A part of many tokens; `query` and `out` are `[tokens, heads, head_dim]`. One key head after the other, as many tokens
/// at once as [`CPU_SCORES`] allows.
fn many(
    shape: AttentionShape,
    cache: &HostCache,
    layer: usize,
    span: Span,
    query: &[f32],
    out: &mut [f32],
) -> Result<()> {
    let AttentionShape { heads, kv_heads, head_dim, window, .. } = shape;
    let (group, start) = (heads / kv_heads, span.first_seen(0, window));
    let visible = span.end() - start;
    let tile = (CPU_SCORES / (group * visible)).clamp(1, span.tokens);
    // Where an element of a token's head is; query heads that share a key head are rows of one product.
    let place = |token: usize, head: usize| (token * heads + head) * head_dim;
    for kv_head in 0..kv_heads {
        let expanded = |half| {
            let mut numbers = vec![0.0; visible * head_dim];
            cache.rows(layer, half, kv_head, start, span.end()).decode(&mut numbers);
            Tensor::from_vec(numbers, (visible, head_dim), &Device::Cpu)
        };
        let (keys, values) = (expanded(Half::Keys)?, expanded(Half::Values)?);
        for first in (0..span.tokens).step_by(tile) {
            let tokens = tile.min(span.tokens - first);
            let seen = span.position + first + tokens - start;
            let rows =
                || (kv_head * group..(kv_head + 1) * group).flat_map(|h| (first..first + tokens).map(move |t| (t, h)));
            let mut queries = Vec::with_capacity(group * tokens * head_dim);
            rows().for_each(|(token, head)| queries.extend_from_slice(&query[place(token, head)..][..head_dim]));
            let queries = Tensor::from_vec(queries, (group * tokens, head_dim), &Device::Cpu)?;
            let scores = queries.matmul(&keys.narrow(0, 0, seen)?.t()?)?;
            scores.inplace_op1(&CausalSoftmax { span, first, tokens, start, window })?;
            let mixed = scores.matmul(&values.narrow(0, 0, seen)?)?.flatten_all()?.to_vec1::<f32>()?;
            for ((token, head), mixed) in rows().zip(mixed.chunks_exact(head_dim)) {
                out[place(token, head)..][..head_dim].copy_from_slice(mixed);
            }
        }
    }
    Ok(())
}

/// The softmax of each row of `[heads · tokens, seen]` over the positions that its token sees; 0 elsewhere.
struct CausalSoftmax {
    span: Span,
    /// The place of the first token in the part.
    first: usize,
    tokens: usize,
    /// The position of the first column.
    start: usize,
    window: Option<usize>,
}

impl InplaceOp1 for CausalSoftmax {
    fn name(&self) -> &'static str {
        "causal-softmax"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let CpuStorage::F32(scores) = storage else { candle_core::bail!("scores are float32") };
        let (Some((from, to)), Some(width)) = (layout.contiguous_offsets(), layout.dims().last().copied()) else {
            candle_core::bail!("scores are contiguous")
        };
        kernels::for_rows(&mut scores[from..to], width, |row, scores| {
            let token = self.first + row % self.tokens;
            let from = self.span.first_seen(token, self.window).max(self.start) - self.start;
            let to = self.span.position + token + 1 - self.start;
            scores[..from].fill(0.0);
            softmax(&mut scores[from..to]);
            scores[to..].fill(0.0);
        });
        Ok(())
    }
}
