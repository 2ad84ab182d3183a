//! Short convolutions and the gated delta rule with candle's operations.

use anyhow::{Context, Result};
use candle_core::{D, Tensor};

use super::Candle;
use super::act::composed::sigmoid;
use super::state::{Recurrent, State};
use crate::backend::{Convolution, DeltaInputs, DeltaRule, LENGTH_EPSILON, Span};

fn recurrent(state: &mut State) -> Result<&mut Recurrent> {
    match state {
        State::Recurrent(state) => Some(state),
        _ => None,
    }
    .context("invariant: the layer has a recurrent state")
}

impl Recurrent {
    /// Returns `count` numbers from `at` on.
    fn part(&self, at: usize, count: usize) -> Result<Tensor> {
        Ok(self.numbers.narrow(0, at, count)?)
    }

    /// Replaces the numbers from `at` on.
    fn replace(&mut self, at: usize, numbers: &Tensor) -> Result<()> {
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

pub(super) fn delta(
    rule: &DeltaRule<Candle>,
    inputs: &DeltaInputs<'_, Candle>,
    span: Span,
    state: &mut State,
) -> Result<Tensor> {
    let DeltaRule { key_heads, value_heads, key_dim, value_dim, .. } = *rule;
    let state = recurrent(state)?;
    let tokens = span.tokens;
    let own = |x: &Tensor| x.narrow(0, span.first, tokens);
    // Returns heads of unit length, `[tokens, value_heads, key_dim]`.
    let unit = |x: &Tensor| -> Result<Tensor> {
        let heads = own(x)?.reshape((tokens, key_heads, 1, key_dim))?;
        let length = (heads.sqr()?.sum_keepdim(D::Minus1)? + f64::from(LENGTH_EPSILON))?.sqrt()?;
        let share = value_heads / key_heads;
        let all = heads.broadcast_div(&length)?.broadcast_as((tokens, key_heads, share, key_dim))?;
        Ok(all.contiguous()?.reshape((tokens, value_heads, key_dim))?)
    };
    let query = (unit(inputs.query.rows()?)? / (key_dim as f64).sqrt())?;
    let key = unit(inputs.key.rows()?)?;
    let value = own(inputs.value.rows()?)?.reshape((tokens, value_heads, value_dim))?;
    let beta = sigmoid(&own(inputs.beta.rows()?)?)?;
    let x = own(inputs.decay.rows()?)?.broadcast_add(&rule.decay_bias)?;
    // ln(1 + exp(x)) = max(x, 0) + ln(1 + exp(-|x|)).
    let soft = (x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?)?;
    let decay = soft.broadcast_mul(&rule.decay_rate.neg()?)?.exp()?;
    let count = value_heads * key_dim * value_dim;
    let mut memory = state.part(0, count)?.reshape((value_heads, key_dim, value_dim))?;
    let mut out = Vec::with_capacity(tokens);
    for token in 0..tokens {
        let row = |x: &Tensor, shape: (usize, usize, usize)| x.get(token)?.reshape(shape);
        let (key, query) = (row(&key, (value_heads, key_dim, 1))?, row(&query, (value_heads, 1, key_dim))?);
        memory = memory.broadcast_mul(&row(&decay, (value_heads, 1, 1))?)?;
        let known = key.transpose(1, 2)?.contiguous()?.matmul(&memory)?;
        let change = (row(&value, (value_heads, 1, value_dim))? - known)?;
        let change = change.broadcast_mul(&row(&beta, (value_heads, 1, 1))?)?;
        memory = (memory + key.matmul(&change)?)?;
        out.push(query.matmul(&memory)?.reshape((1, value_heads * value_dim))?);
    }
    state.replace(0, &memory.flatten_all()?)?;
    state.length = span.end();
    Ok(Tensor::cat(&out, 0)?)
}
