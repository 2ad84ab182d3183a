//! Softmax attention with candle's operations.

use anyhow::{Result, bail};
use architectures::BlockRule;
use candle_core::{Device, IndexOp, Tensor};

use super::Candle;
use super::act::Act;
use super::compression::{self, scores_of_keys};
use super::state::{Kv, State};
use crate::backend::{Attend, BlockChoice, ChosenPositions, IndexQueries, Span, Values};

/// Computes the attention of the tokens of one sequence: `[tokens, heads · value_dim]`.
pub(super) fn attend(
    attend: &Attend<'_, Candle>,
    [query, key, value]: [&Tensor; 3],
    (chosen, entries): (Option<&ChosenPositions>, Option<(&State, Option<&ChosenPositions>)>),
    span: Span,
    state: &mut State,
) -> Result<Tensor> {
    let own = attend.values == Values::Own;
    let heads = |x: &Tensor, count: usize| -> Result<Tensor> {
        let own = x.narrow(0, span.first, span.tokens)?;
        let width = own.dim(1)? / count;
        Ok(own.reshape((span.tokens, count, width))?.transpose(0, 1)?.contiguous()?)
    };
    let given = if attend.reads_only {
        None
    } else {
        let value = if own { Some(heads(value, attend.kv_heads)?) } else { None };
        Some((heads(key, attend.kv_heads)?, value))
    };
    let query = heads(query, attend.heads)?;
    let mut text;
    let kv = match state {
        State::Kv(kv) => kv,
        State::Nothing => {
            let dims = [attend.key_dim, if own { attend.value_dim } else { 0 }];
            text = Kv::of_text(attend.kv_heads, dims, span.tokens, query.device());
            &mut text
        }
        State::Recurrent(_) | State::Cached(_) | State::Entries(_) | State::Stateless => {
            bail!("invariant: attention has keys and values as tensors")
        }
    };
    if let Some((key, value)) = given {
        kv.append(&key, value.as_ref())?;
    }
    let (from, to) = (attend.seen(span, 0).start, span.end());
    let keys = kv.rows(0, from, to)?;
    let values = if own { kv.rows(1, from, to)? } else { keys.narrow(2, 0, attend.value_dim)?.contiguous()? };
    let count = attend.entries.as_ref().map_or(0, |entries| entries.seen(span.end() - 1));
    let Some((state, of_entries)) = entries.filter(|_| count > 0) else {
        return mix(attend, [chosen, None], span, [from, 0], [&query, &keys, &values]);
    };
    let entries = compression::entries(state)?.kv.rows(0, 0, count)?;
    let keys = Tensor::cat(&[&keys, &entries], 1)?;
    let values = keys.narrow(2, 0, attend.value_dim)?.contiguous()?;
    mix(attend, [chosen, of_entries], span, [from, count], [&query, &keys, &values])
}

/// Lets queries attend to the positions from `from` on, and to `entries` entries behind them.
/// Positions and entries may have been chosen before.
fn mix(
    attend: &Attend<'_, Candle>,
    [earlier, of_entries]: [Option<&ChosenPositions>; 2],
    span: Span,
    [from, entries]: [usize; 2],
    [query, keys, values]: [&Tensor; 3],
) -> Result<Tensor> {
    let (heads, kv_heads, tokens) = (attend.heads, attend.kv_heads, span.tokens);
    let visible = span.end() - from + entries;
    // Query heads that share a key head are rows of the same product.
    let rows = heads / kv_heads * tokens;
    let query = (query.reshape((kv_heads, rows, attend.key_dim))? * f64::from(attend.scale))?;
    let mut scores = query.matmul(&keys.transpose(1, 2)?.contiguous()?)?;
    if let Some(cap) = attend.soft_cap.map(f64::from) {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    let mut scores = scores.reshape((heads, tokens, visible))?;
    if let Some(bias) = attend.position_bias {
        let mut numbers = vec![0.0; heads * tokens * visible];
        for (row, scores) in numbers.chunks_exact_mut(visible).enumerate() {
            bias.add(row / tokens, span.position + row % tokens, from, scores);
        }
        scores = (scores + Tensor::from_vec(numbers, (heads, tokens, visible), keys.device())?)?;
    }
    let own = match attend.indexer.as_ref().filter(|indexer| visible > indexer.count) {
        Some(indexer) => Some(chosen(indexer, span, keys)?),
        None => None,
    };
    if let Some(chosen) = earlier.or(own.as_ref()) {
        scores = scores.broadcast_add(&mask_of(chosen, heads, span, keys.device())?)?;
    }
    let of_entries = mask_of_entries(attend, of_entries, span, [visible - entries, entries]);
    if let Some(mask) = mask(attend, span, from, keys.device())? {
        scores = scores.broadcast_add(&mask.pad_with_zeros(1, 0, entries)?)?;
    }
    if let Some(mask) = of_entries {
        scores = scores.broadcast_add(&Tensor::from_vec(mask, (tokens, visible), keys.device())?)?;
    }
    if let Some(sinks) = attend.sinks {
        // A sink is an extra column that takes its share of the softmax and has no value.
        let sinks = sinks.reshape((heads, 1, 1))?.broadcast_as((heads, tokens, 1))?;
        scores = Tensor::cat(&[&scores, &sinks.contiguous()?], 2)?;
    }
    let weights = candle_nn::ops::softmax_last_dim(&scores.contiguous()?)?.narrow(2, 0, visible)?;
    let mixed = weights.contiguous()?.reshape((kv_heads, rows, visible))?.matmul(values)?;
    let by_token = mixed.reshape((heads, tokens, attend.value_dim))?.transpose(0, 1)?.contiguous()?;
    Ok(by_token.reshape((tokens, heads * attend.value_dim))?)
}

/// Chooses the positions to which the tokens of a sequence attend.
fn chosen(indexer: &IndexQueries<'_, Candle>, span: Span, keys: &Tensor) -> Result<ChosenPositions> {
    let IndexQueries { queries, weights, heads, head_dim, count } = *indexer;
    let keys = keys.i(0)?.narrow(1, keys.dim(2)? - head_dim, head_dim)?.contiguous()?;
    let own = |x: &Act| -> Result<Tensor> { Ok(x.rows()?.narrow(0, span.first, span.tokens)?.contiguous()?) };
    let scores = scores_of_keys(&own(queries)?, &own(weights)?, &keys, [heads, head_dim])?;
    Ok(ChosenPositions::new(span, [1, 1], |marks, width| {
        for ((token, marks), scores) in marks.chunks_exact_mut(width).enumerate().zip(&scores) {
            let fill = |own: &mut [f32]| own.copy_from_slice(&scores[..own.len()]);
            ChosenPositions::choose(span.position + token + 1, count, fill, marks);
        }
    }))
}

/// Returns `[heads, tokens, positions]`, or one head if all are alike: 0 if a token attends to a
/// position, else minus infinity.
fn mask_of(chosen: &ChosenPositions, heads: usize, span: Span, device: &Device) -> Result<Tensor> {
    let heads = if chosen.is_shared() { 1 } else { heads };
    let mut mask = vec![0.0; heads * span.tokens * span.end()];
    for (row, mask) in mask.chunks_exact_mut(span.end()).enumerate() {
        chosen.mask([row / span.tokens, heads], span.position + row % span.tokens, 0, mask);
    }
    Ok(Tensor::from_vec(mask, (heads, span.tokens, span.end()), device)?)
}

/// Appends the keys of an indexer to a sequence and chooses blocks for its tokens.
pub(super) fn choose_blocks(
    choice: &BlockChoice<'_, Candle>,
    span: Span,
    state: &mut State,
) -> Result<Option<ChosenPositions>> {
    let BlockChoice { queries, keys, heads, head_dim, block, .. } = *choice;
    let State::Kv(kv) = state else { bail!("invariant: an indexer has keys as tensors") };
    let own = |x: &Act| -> Result<Tensor> { Ok(x.rows()?.narrow(0, span.first, span.tokens)?.contiguous()?) };
    kv.append(&own(keys)?.unsqueeze(0)?, None)?;
    if !choice.is_needed(span) {
        return Ok(None);
    }
    let mut keys = kv.rows(0, 0, span.end())?.i(0)?;
    if choice.rule == BlockRule::Mean {
        let blocks = span.end() / block;
        let complete = keys.narrow(0, 0, blocks * block)?.reshape((blocks, block, head_dim))?;
        keys = complete.narrow(1, block - 1, 1)?.squeeze(1)?;
    }
    let queries = own(queries)?.reshape((span.tokens * heads, head_dim))?;
    let products = queries.matmul(&keys.contiguous()?.t()?)?.to_vec2::<f32>()?;
    Ok(Some(choice.of_sequence(span, |marks, width| {
        for (token, marks) in marks.chunks_exact_mut(width).enumerate() {
            let write = |head: usize, out: &mut [f32]| {
                out.copy_from_slice(&products[token * heads + head][..out.len()]);
            };
            choice.mark(span.position + token, write, marks);
        }
    })))
}

/// Returns `[tokens, positions + entries]`: minus infinity for the entries to which a token does
/// not attend, else 0. Returns `None` if there are no entries.
fn mask_of_entries(
    attend: &Attend<'_, Candle>,
    chosen: Option<&ChosenPositions>,
    span: Span,
    [positions, entries]: [usize; 2],
) -> Option<Vec<f32>> {
    let own = attend.entries.as_ref().filter(|_| entries > 0)?;
    let mut mask = vec![0.0; span.tokens * (positions + entries)];
    for (token, mask) in mask.chunks_exact_mut(positions + entries).enumerate() {
        let position = span.position + token;
        let (seen, behind) = mask[positions..].split_at_mut(own.seen(position));
        behind.fill(f32::NEG_INFINITY);
        if let Some(chosen) = chosen {
            chosen.mask([0, 1], position, 0, seen);
        }
    }
    Some(mask)
}

/// Returns `[tokens, visible]`: 0 if a token sees a position, else minus infinity. Returns `None`
/// if all tokens see all positions.
fn mask(attend: &Attend<'_, Candle>, span: Span, from: usize, device: &Device) -> Result<Option<Tensor>> {
    let seen = |token: usize| attend.seen(span, token);
    if (0..span.tokens).all(|token| seen(token) == (from..span.end())) {
        return Ok(None);
    }
    let cells = (0..span.tokens).flat_map(|token| {
        let seen = seen(token);
        (from..span.end()).map(move |position| if seen.contains(&position) { 0.0f32 } else { f32::NEG_INFINITY })
    });
    let shape = (span.tokens, span.end() - from);
    Ok(Some(Tensor::from_vec(cells.collect(), shape, device)?))
}
