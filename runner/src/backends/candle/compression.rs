//! Compressed entries with candle's operations: how they are made and chosen.

use anyhow::{Result, bail};
use candle_core::{IndexOp, Tensor};

use super::Candle;
use super::act::Act;
use super::recurrent::recurrent;
use super::state::{Entries, State};
use crate::backend::{ChosenPositions, Compression, EntryChoice, Span, entries_seen};

/// Returns the entries of a state.
pub(super) fn entries(state: &State) -> Result<&Entries> {
    match state {
        State::Entries(own) => Ok(own),
        _ => bail!("invariant: the layer has compressed entries"),
    }
}

/// Returns the entries of a state, to change them.
pub(super) fn entries_mut(state: &mut State) -> Result<&mut Entries> {
    match state {
        State::Entries(own) => Ok(own),
        _ => bail!("invariant: the layer has compressed entries"),
    }
}

/// Makes the entries of the tokens of one sequence: `[tokens, width]`, with zeros for tokens that
/// complete no segment.
pub(super) fn compress(
    compression: &Compression<Candle>,
    [values, gates]: [&Tensor; 2],
    span: Span,
    state: &mut State,
) -> Result<Tensor> {
    let (width, kept) = (compression.width, compression.reach() - 1);
    let value_width = compression.value_width();
    let state = recurrent(state)?;
    let rows = |own: &Tensor, which: usize| -> Result<Tensor> {
        let past = state.part(which * kept * value_width, kept * value_width)?.reshape((kept, value_width))?;
        Ok(Tensor::cat(&[&past, &own.narrow(0, span.first, span.tokens)?], 0)?)
    };
    let (values, gates) = (rows(values, 0)?, rows(gates, 1)?);
    let first = (compression.every - 1) - span.position % compression.every;
    let count = (span.tokens + compression.every - 1 - first) / compression.every;
    let mut made = Tensor::zeros((span.tokens, width), values.dtype(), values.device())?;
    if count > 0 {
        let last = (kept + first, span.position + first);
        let entries = of_segments(compression, [&values, &gates], count, last)?;
        let tokens: Vec<u32> = (0..count).map(|at| (first + at * compression.every) as u32).collect();
        made = made.index_add(&Tensor::new(tokens, values.device())?, &entries, 0)?;
    }
    for (which, rows) in [&values, &gates].into_iter().enumerate() {
        state.replace(which * kept * value_width, &rows.narrow(0, span.tokens, kept)?.flatten_all()?)?;
    }
    state.length = span.end();
    Ok(made)
}

/// Makes `count` entries, `[count, width]`. `row` is the row of the last position of the first one,
/// and `position` that position.
fn of_segments(
    compression: &Compression<Candle>,
    rows: [&Tensor; 2],
    count: usize,
    (row, position): (usize, usize),
) -> Result<Tensor> {
    let (every, width) = (compression.every, compression.width);
    let begin = row + 1 - every;
    // `[count, every, width]`: a part of the rows of each segment, or of the segment before it.
    let part = |rows: &Tensor, begin: usize, first: usize| -> Result<Tensor> {
        let own = rows.narrow(0, begin, count * every)?.narrow(1, first, width)?.contiguous()?;
        Ok(own.reshape((count, every, width))?)
    };
    let biases = compression.bias.reshape((every, compression.value_width()))?;
    let bias = |first: usize| -> Result<Tensor> { Ok(biases.narrow(1, first, width)?.contiguous()?) };
    let [values, gates] = rows;
    let (values, gates) = if compression.overlaps {
        let mut before = part(gates, begin - every, 0)?.broadcast_add(&bias(0)?)?;
        if position < every {
            // There is no segment before the first one.
            let none = Tensor::full(f32::NEG_INFINITY, (1, every, width), before.device())?;
            before = Tensor::cat(&[&none, &before.narrow(0, 1, count - 1)?], 0)?;
        }
        let own = part(gates, begin, width)?.broadcast_add(&bias(width)?)?;
        let values = [part(values, begin - every, 0)?, part(values, begin, width)?];
        (Tensor::cat(&values, 1)?, Tensor::cat(&[before, own], 1)?)
    } else {
        (part(values, begin, 0)?, part(gates, begin, 0)?.broadcast_add(&bias(0)?)?)
    };
    Ok((values * candle_nn::ops::softmax(&gates, 1)?)?.sum(1)?)
}

/// Chooses the entries to which the tokens of a sequence attend.
pub(super) fn choose(choice: &EntryChoice<'_, Candle>, span: Span, state: &State) -> Result<Option<ChosenPositions>> {
    let EntryChoice { queries, weights, heads, head_dim, count, every } = *choice;
    let all = span.end() / every;
    if all <= count {
        return Ok(None);
    }
    let keys = entries(state)?.kv.rows(0, 0, all)?.i(0)?.contiguous()?;
    let own = |x: &Act| -> Result<Tensor> { Ok(x.rows()?.narrow(0, span.first, span.tokens)?.contiguous()?) };
    let scores = scores_of_keys(&own(queries)?, &own(weights)?, &keys, [heads, head_dim])?;
    Ok(Some(ChosenPositions::of_entries(span, every, |marks, width| {
        for ((token, marks), scores) in marks.chunks_exact_mut(width).enumerate().zip(&scores) {
            let fill = |own: &mut [f32]| own.copy_from_slice(&scores[..own.len()]);
            ChosenPositions::choose(entries_seen(span.position + token, every), count, fill, &mut marks[..all]);
        }
    })))
}

/// Returns `Σ weights[h] · relu(query[h] · key)` over the heads, for each token and key.
pub(super) fn scores_of_keys(
    queries: &Tensor,
    weights: &Tensor,
    keys: &Tensor,
    [heads, head_dim]: [usize; 2],
) -> Result<Vec<Vec<f32>>> {
    let (tokens, count) = (queries.dim(0)?, keys.dim(0)?);
    let queries = queries.reshape((tokens * heads, head_dim))?;
    let products = queries.matmul(&keys.t()?)?.relu()?.reshape((tokens, heads, count))?;
    Ok(products.broadcast_mul(&weights.reshape((tokens, heads, 1))?)?.sum(1)?.to_vec2::<f32>()?)
}
