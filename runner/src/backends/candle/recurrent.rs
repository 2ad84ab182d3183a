//! Short convolutions and linear recurrences with candle's operations.

use anyhow::{Context, Result};
use architectures::HeadPairing;
use candle_core::{D, DType, Tensor};

use super::Candle;
use super::act::Act;
use super::act::composed::{by_head, flat, sigmoid, softplus};
use super::state::{Recurrent, State};
use crate::backend::{Convolution, LENGTH_EPSILON, Recurrence, RecurrenceInputs, RecurrenceRule, Span};

pub(super) fn recurrent(state: &mut State) -> Result<&mut Recurrent> {
    match state {
        State::Recurrent(state) => Some(state),
        _ => None,
    }
    .context("invariant: the layer has a recurrent state")
}

impl Recurrent {
    /// Returns `count` numbers from `at` on.
    pub(super) fn part(&self, at: usize, count: usize) -> Result<Tensor> {
        Ok(self.numbers.narrow(0, at, count)?)
    }

    /// Replaces the numbers from `at` on.
    pub(super) fn replace(&mut self, at: usize, numbers: &Tensor) -> Result<()> {
        let (count, all) = (numbers.dim(0)?, self.numbers.dim(0)?);
        let before = self.numbers.narrow(0, 0, at)?;
        let after = self.numbers.narrow(0, at + count, all - at - count)?;
        self.numbers = Tensor::cat(&[&before, numbers, &after], 0)?;
        Ok(())
    }
}

pub(super) fn convolve(convolution: &Convolution<Candle>, x: &Tensor, span: Span, state: &mut State) -> Result<Tensor> {
    let Convolution { weight, bias, kernel, at } = convolution;
    let state = recurrent(state)?;
    let width = x.dim(1)?;
    let past = state.part(*at, (kernel - 1) * width)?.reshape((kernel - 1, width))?;
    let rows = Tensor::cat(&[&past, &x.narrow(0, span.first, span.tokens)?], 0)?;
    let weight = weight.reshape((width, *kernel))?;
    let mut sum = rows.narrow(0, 0, span.tokens)?.zeros_like()?;
    for k in 0..*kernel {
        let own = weight.narrow(1, k, 1)?.squeeze(1)?;
        sum = (sum + rows.narrow(0, k, span.tokens)?.broadcast_mul(&own)?)?;
    }
    state.replace(*at, &rows.narrow(0, span.tokens, kernel - 1)?.flatten_all()?)?;
    state.length = span.end();
    Ok(match bias {
        Some(bias) => sum.broadcast_add(bias)?,
        None => sum,
    })
}

/// Computes a linear recurrence for one sequence.
pub(super) fn recur(
    recurrence: &Recurrence<Candle>,
    inputs: &RecurrenceInputs<'_, Candle>,
    span: Span,
    state: &mut State,
) -> Result<Tensor> {
    let Recurrence { value_heads, key_dim, value_dim, .. } = *recurrence;
    let state = recurrent(state)?;
    let tokens = span.tokens;
    let own = |x: &Act| -> Result<Tensor> { Ok(x.rows()?.narrow(0, span.first, tokens)?) };
    let value = own(inputs.value)?.reshape((tokens, value_heads, value_dim))?;
    let soft = match inputs.decay {
        Some(decay) => softplus(&own(decay)?.broadcast_add(&recurrence.decay_bias)?)?,
        None => Tensor::ones((tokens, value_heads), DType::F32, value.device())?,
    };
    let (query, key) = (own(inputs.query)?, own(inputs.key)?);
    let heads = |x: &Tensor| by_value_head(recurrence, x);
    let (query, key, step, beta) = match &recurrence.rule {
        RecurrenceRule::Delta { scale } => {
            let beta = inputs.beta.context("invariant: a delta rule has betas")?;
            let query = (unit(&query, key_dim)? / (key_dim as f64).sqrt())?;
            (query, unit(&key, key_dim)?, soft, Some((sigmoid(&own(beta)?)? * f64::from(*scale))?))
        }
        RecurrenceRule::StateSpace { limits: [least, most], .. } => {
            let step = soft.maximum(f64::from(*least))?;
            let step = if most.is_finite() { step.minimum(f64::from(*most))? } else { step };
            (query, key, step, None)
        }
    };
    let (query, key) = (heads(&query)?, heads(&key)?);
    let rates = recurrence.decay_rate.neg()?.reshape((1, value_heads, recurrence.rates_per_head))?;
    let steps = step.reshape((tokens, value_heads, recurrence.steps_per_head))?;
    let decay = steps.broadcast_mul(&rates)?.exp()?;
    let rows = recurrence.rates_per_head.max(recurrence.steps_per_head);
    // Factors of the values that the tokens write.
    let factor = beta.as_ref().unwrap_or(&step);
    let count = value_heads * key_dim * value_dim;
    let mut memory = state.part(0, count)?.reshape((value_heads, key_dim, value_dim))?;
    let mut out = Vec::with_capacity(tokens);
    for token in 0..tokens {
        let row = |x: &Tensor, shape: (usize, usize, usize)| x.get(token)?.reshape(shape);
        let (key, query) = (row(&key, (value_heads, key_dim, 1))?, row(&query, (value_heads, 1, key_dim))?);
        memory = memory.broadcast_mul(&row(&decay, (value_heads, rows, 1))?)?;
        let mut change = row(&value, (value_heads, 1, value_dim))?;
        if beta.is_some() {
            change = (change - key.transpose(1, 2)?.contiguous()?.matmul(&memory)?)?;
        }
        let change = change.broadcast_mul(&row(factor, (value_heads, 1, 1))?)?;
        memory = (memory + key.matmul(&change)?)?;
        out.push(query.matmul(&memory)?.reshape((1, value_heads * value_dim))?);
    }
    state.replace(0, &memory.flatten_all()?)?;
    state.length = span.end();
    let out = Tensor::cat(&out, 0)?;
    let RecurrenceRule::StateSpace { skip, .. } = &recurrence.rule else { return Ok(out) };
    let skipped = value.broadcast_mul(&skip.reshape((1, value_heads, 1))?)?;
    Ok((out + flat(&skipped)?)?)
}

/// Divides each head by its length.
fn unit(x: &Tensor, key_dim: usize) -> Result<Tensor> {
    let heads = by_head(x, key_dim)?;
    let length = (heads.sqr()?.sum_keepdim(D::Minus1)? + f64::from(LENGTH_EPSILON))?.sqrt()?;
    flat(&heads.broadcast_div(&length)?)
}

/// Returns the key head of each value head, `[tokens, value_heads, key_dim]`.
fn by_value_head(recurrence: &Recurrence<Candle>, x: &Tensor) -> Result<Tensor> {
    let Recurrence { key_heads, value_heads, key_dim, .. } = *recurrence;
    let (tokens, share) = (x.dim(0)?, value_heads / key_heads);
    let all = match recurrence.pairing {
        HeadPairing::Grouped => {
            x.reshape((tokens, key_heads, 1, key_dim))?.broadcast_as((tokens, key_heads, share, key_dim))?
        }
        HeadPairing::Alternating => {
            x.reshape((tokens, 1, key_heads, key_dim))?.broadcast_as((tokens, share, key_heads, key_dim))?
        }
    };
    Ok(all.contiguous()?.reshape((tokens, value_heads, key_dim))?)
}
