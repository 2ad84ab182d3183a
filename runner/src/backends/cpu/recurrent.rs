//! Mixers with a state of fixed size: short convolutions and the gated delta rule.
#![expect(unsafe_code, reason = "threads write heads of one slice")]

use anyhow::{Context, Result};

use super::state::{Recurrent, State};
use kernels::elementwise::sigmoid;
use kernels::float;

use super::Cpu;
use crate::backend::{
    Convolution, DeltaInputs, DeltaRule, LENGTH_EPSILON, LayerSequences, SequenceId, StatesBySequence,
};
use kernels::pool::SharedSlice;

fn recurrent(states: &mut StatesBySequence<State>, id: SequenceId) -> Result<&mut Recurrent> {
    match states.get_mut(id)? {
        State::Recurrent(state) => Some(state),
        _ => None,
    }
    .context("invariant: the layer has a recurrent state")
}

/// `out[t, c] = bias[c] + Σ_k weight[c, k] · x[t - kernel + 1 + k, c]`; the state holds the rows
/// before the tokens.
pub(super) fn convolve(
    convolution: &Convolution<Cpu>,
    x: &[f32],
    width: usize,
    sequences: &mut LayerSequences<'_, Cpu>,
    out: &mut [f32],
) -> Result<()> {
    let Convolution { weight, bias, kernel, at } = convolution;
    for sequence in sequences.sequences {
        let span = sequence.span;
        let state = recurrent(sequences.states, sequence.id)?;
        let past = &mut state.numbers[*at..at + (kernel - 1) * width];
        let x = &x[span.first * width..(span.first + span.tokens) * width];
        let out = &mut out[span.first * width..(span.first + span.tokens) * width];
        for (token, out) in out.chunks_exact_mut(width).enumerate() {
            match bias {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            for k in 0..*kernel {
                // Number of positions before the token; rows before all tokens come from the state.
                let back = kernel - 1 - k;
                let row = if back <= token {
                    &x[(token - back) * width..][..width]
                } else {
                    &past[(kernel - 1 + token - back) * width..][..width]
                };
                for (channel, (out, x)) in out.iter_mut().zip(row).enumerate() {
                    *out += weight[channel * kernel + k] * x;
                }
            }
        }
        // The last rows become the past of the next tokens.
        let kept = (kernel - 1).saturating_sub(span.tokens);
        past.copy_within(past.len() - kept * width.., 0);
        let new = (kernel - 1 - kept) * width;
        past[kept * width..].copy_from_slice(&x[x.len() - new..]);
        state.length = span.end();
    }
    Ok(())
}

impl Cpu {
    /// See [`Backend::delta_rule`](crate::backend::Backend::delta_rule).
    pub(super) fn delta(
        &self,
        rule: &DeltaRule<Self>,
        inputs: &DeltaInputs<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
        out: &mut [f32],
    ) -> Result<()> {
        let DeltaRule { key_heads, value_heads, key_dim, value_dim, .. } = *rule;
        let memory = key_dim * value_dim;
        let out = SharedSlice::new(out);
        for sequence in sequences.sequences {
            let span = sequence.span;
            let state = recurrent(sequences.states, sequence.id)?;
            self.pool.for_rows(&mut state.numbers[..value_heads * memory], memory, |head, memory| {
                let key_head = head / (value_heads / key_heads);
                for token in span.first..span.first + span.tokens {
                    float::with_buffer(2 * key_dim + value_dim, |scratch| {
                        let (query, rest) = scratch.split_at_mut(key_dim);
                        let (key, change) = rest.split_at_mut(key_dim);
                        let place = (token * key_heads + key_head) * key_dim;
                        unit(&inputs.query.numbers[place..place + key_dim], 1.0 / (key_dim as f32).sqrt(), query);
                        unit(&inputs.key.numbers[place..place + key_dim], 1.0, key);
                        let of = |numbers: &[f32]| numbers[token * value_heads + head];
                        let soft = softplus(of(&inputs.decay.numbers) + rule.decay_bias[head]);
                        let decay = (-rule.decay_rate[head] * soft).exp();
                        let beta = sigmoid(of(&inputs.beta.numbers));
                        let place = (token * value_heads + head) * value_dim;
                        // SAFETY: each head of each token is computed once, by the thread that has
                        // the head.
                        let out = unsafe { out.range(place..place + value_dim) };
                        step(
                            memory,
                            [query, key],
                            &inputs.value.numbers[place..place + value_dim],
                            [decay, beta],
                            change,
                            out,
                        );
                    });
                }
            });
        }
        Ok(())
    }
}

/// Computes one token of one head; `memory` is `[key_dim, value_dim]`.
fn step(
    memory: &mut [f32],
    [query, key]: [&[f32]; 2],
    value: &[f32],
    [decay, beta]: [f32; 2],
    change: &mut [f32],
    out: &mut [f32],
) {
    let width = value.len();
    change.fill(0.0);
    for (row, key) in memory.chunks_exact_mut(width).zip(key) {
        for (x, change) in row.iter_mut().zip(change.iter_mut()) {
            *x *= decay;
            *change += key * *x;
        }
    }
    for (change, value) in change.iter_mut().zip(value) {
        *change = (value - *change) * beta;
    }
    out.fill(0.0);
    for ((row, key), query) in memory.chunks_exact_mut(width).zip(key).zip(query) {
        for ((x, change), out) in row.iter_mut().zip(change.iter()).zip(out.iter_mut()) {
            *x += key * change;
            *out += query * *x;
        }
    }
}

/// `scale · x / |x|`.
fn unit(x: &[f32], scale: f32, out: &mut [f32]) {
    let squares: f32 = x.iter().map(|x| x * x).sum();
    let factor = scale / (squares + LENGTH_EPSILON).sqrt();
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
}

/// `ln(1 + exp(x))`.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
