//! Attention with candle's operations, for devices that are not the CPU.

use anyhow::{Result, bail};
use candle_core::{Device, Tensor};

use super::{AttentionShape, Part, Pass, Projected, Span};
use crate::cache::{Half, Storage};

/// The mixed values of all tokens, `[tokens, heads · head_dim]`.
pub(super) fn attend(
    shape: AttentionShape,
    projected: &Projected,
    parts: &mut [Part<'_>],
    layer: usize,
    pass: &Pass,
) -> Result<Tensor> {
    let mut mixed = Vec::with_capacity(parts.len());
    let mut first = 0;
    for (index, part) in parts.iter_mut().enumerate() {
        let tokens = part.tokens.len();
        let rotated = |x: &Tensor| -> Result<Tensor> {
            let own = by_head(x, first, tokens)?;
            match &pass.angles {
                Some(angles) => Ok(angles.rotate_tensor(&own.unsqueeze(0)?, first)?.squeeze(0)?),
                None => Ok(own),
            }
        };
        let key = rotated(&projected.key)?;
        let value = by_head(&projected.value, first, tokens)?;
        let mask = pass.masks.get(index).and_then(Option::as_ref);
        mixed.push(attend_part(shape, part, layer, [&rotated(&projected.query)?, &key, &value], mask)?);
        first += tokens;
    }
    Ok(Tensor::cat(&mixed, 0)?)
}

/// A part's rows of `[tokens, heads, head_dim]` as `[heads, tokens, head_dim]`.
fn by_head(x: &Tensor, first: usize, tokens: usize) -> candle_core::Result<Tensor> {
    x.narrow(0, first, tokens)?.transpose(0, 1)?.contiguous()
}

/// `query`, `key` and `value` are `[heads, tokens, head_dim]`; gives `[tokens, heads · head_dim]`.
fn attend_part(
    shape: AttentionShape,
    part: &mut Part<'_>,
    layer: usize,
    [query, key, value]: [&Tensor; 3],
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let AttentionShape { heads, kv_heads, head_dim, scale, window } = shape;
    let span = part.span();
    let Storage::Device(cache) = &mut part.cache.storage else {
        bail!("the KV cache is on another device than the weights");
    };
    cache.write(layer, Half::Keys, span.position, key)?;
    cache.write(layer, Half::Values, span.position, value)?;
    let (start, end) = (span.first_seen(0, window), span.end());
    let keys = cache.rows(layer, Half::Keys, start, end)?;
    let values = cache.rows(layer, Half::Values, start, end)?;
    // Query heads that share a key head are rows of one product.
    let rows = heads / kv_heads * span.tokens;
    let query = (query.reshape((kv_heads, rows, head_dim))? * scale)?;
    let scores = query.matmul(&keys.transpose(1, 2)?)?;
    let scores = match mask {
        Some(mask) => {
            let by_head = scores.reshape((heads, span.tokens, end - start))?.broadcast_add(mask)?;
            by_head.reshape((kv_heads, rows, end - start))?
        }
        None => scores,
    };
    let mixed = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&values)?;
    let by_token = mixed.reshape((heads, span.tokens, head_dim))?.transpose(0, 1)?;
    Ok(by_token.reshape((span.tokens, heads * head_dim))?)
}

/// `[tokens, visible]`: 0 where a token sees a position, else minus infinity. A single token sees all of its window.
pub(super) fn mask(span: Span, window: Option<usize>, device: &Device) -> Result<Option<Tensor>> {
    if span.tokens == 1 {
        return Ok(None);
    }
    let (start, end) = (span.first_seen(0, window), span.end());
    let cells: Vec<f32> = (0..span.tokens)
        .flat_map(|token| {
            let seen = span.first_seen(token, window)..=span.position + token;
            (start..end).map(move |position| if seen.contains(&position) { 0.0 } else { f32::NEG_INFINITY })
        })
        .collect();
    Ok(Some(Tensor::from_vec(cells, (span.tokens, end - start), device)?))
}
