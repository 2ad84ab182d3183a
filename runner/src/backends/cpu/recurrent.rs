//! Mixers with a state of fixed size: short convolutions and linear recurrences.
#![expect(unsafe_code, reason = "threads write heads of one slice")]

use anyhow::{Context, Result};

use super::state::{Recurrent, State};
use kernels::elementwise::{sigmoid, softplus};
use kernels::float;

use super::Cpu;
use crate::backend::{
    Convolution, LENGTH_EPSILON, LayerSequences, Recurrence, RecurrenceInputs, RecurrenceRule, SequenceId,
    StatesBySequence,
};
use kernels::pool::SharedSlice;

pub(super) fn recurrent(states: &mut StatesBySequence<State>, id: SequenceId) -> Result<&mut Recurrent> {
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
    /// See [`Backend::recur`](crate::backend::Backend::recur).
    pub(super) fn recurrence(
        &self,
        recurrence: &Recurrence<Self>,
        inputs: &RecurrenceInputs<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
        out: &mut [f32],
    ) -> Result<()> {
        let Recurrence { value_heads, key_dim, value_dim, .. } = *recurrence;
        let memory = key_dim * value_dim;
        let out = SharedSlice::new(out);
        for sequence in sequences.sequences {
            let span = sequence.span;
            let state = recurrent(sequences.states, sequence.id)?;
            self.pool.for_rows(&mut state.numbers[..value_heads * memory], memory, |head, memory| {
                for token in span.first..span.first + span.tokens {
                    let place = (token * value_heads + head) * value_dim;
                    // SAFETY: each head of each token is computed once, by the thread that has the
                    // head.
                    let out = unsafe { out.range(place..place + value_dim) };
                    step(recurrence, inputs, [token, head], memory, out);
                }
            });
            state.length = span.end();
        }
        Ok(())
    }
}

/// Computes one token of one head; `memory` is `[key_dim, value_dim]`.
fn step(
    recurrence: &Recurrence<Cpu>,
    inputs: &RecurrenceInputs<'_, Cpu>,
    [token, head]: [usize; 2],
    memory: &mut [f32],
    out: &mut [f32],
) {
    let Recurrence { key_heads, value_heads, key_dim, value_dim, rates_per_head, steps_per_head, .. } = *recurrence;
    let key_head = recurrence.pairing.key_head(head, [key_heads, value_heads]);
    let place = (token * key_heads + key_head) * key_dim;
    let [query, key] = [inputs.query, inputs.key].map(|x| &x.numbers[place..place + key_dim]);
    let at = token * value_heads + head;
    let value = &inputs.value.numbers[at * value_dim..(at + 1) * value_dim];
    let steps = inputs.decay.map_or(&[][..], |decay| &decay.numbers[at * steps_per_head..][..steps_per_head]);
    let biases = &recurrence.decay_bias[head * steps_per_head..][..steps_per_head];
    let rates = &recurrence.decay_rate[head * rates_per_head..][..rates_per_head];
    let decay = |rate: f32, step: f32| (-rate * step).exp();
    match &recurrence.rule {
        RecurrenceRule::Delta { scale } => {
            let beta = scale * inputs.beta.map_or(0.0, |beta| sigmoid(beta.numbers[at]));
            float::with_buffer(2 * key_dim + value_dim, |scratch| {
                let (unit_query, rest) = scratch.split_at_mut(key_dim);
                let (unit_key, change) = rest.split_at_mut(key_dim);
                unit(query, 1.0 / (key_dim as f32).sqrt(), unit_query);
                unit(key, 1.0, unit_key);
                let inputs = ([&*unit_query, &*unit_key], value, beta);
                if let ([step], [bias]) = (steps, biases) {
                    let decays = std::iter::repeat(decay(rates[0], softplus(step + bias)));
                    delta(memory, inputs, decays, change, out);
                } else {
                    let decays = steps.iter().zip(biases).map(|(step, bias)| decay(rates[0], softplus(step + bias)));
                    delta(memory, inputs, decays, change, out);
                }
            });
        }
        RecurrenceRule::StateSpace { limits, skip } => {
            let step = steps.first().map_or(1.0, |step| softplus(step + biases[0]).clamp(limits[0], limits[1]));
            match rates {
                [rate] => {
                    let decays = std::iter::repeat(decay(*rate, step));
                    state_space(memory, [query, key], value, (decays, step), out);
                }
                rates => {
                    let decays = rates.iter().map(|rate| decay(*rate, step));
                    state_space(memory, [query, key], value, (decays, step), out);
                }
            }
            out.iter_mut().zip(value).for_each(|(out, value)| *out += skip[head] * value);
        }
    }
}

/// `S ← decay · S + key ⊗ step · value`, `out = Sᵀ · query`; there is a decay for each row of `S`.
fn state_space(
    memory: &mut [f32],
    [query, key]: [&[f32]; 2],
    value: &[f32],
    (decays, step): (impl Iterator<Item = f32>, f32),
    out: &mut [f32],
) {
    out.fill(0.0);
    for (((row, key), query), decay) in memory.chunks_exact_mut(value.len()).zip(key).zip(query).zip(decays) {
        let written = key * step;
        for ((x, value), out) in row.iter_mut().zip(value).zip(out.iter_mut()) {
            *x = *x * decay + written * value;
            *out += query * *x;
        }
    }
}

/// `S ← decay · S`, `S ← S + key ⊗ beta · (value - Sᵀ · key)`, `out = Sᵀ · query`; there is a decay
/// for each row of `S`.
fn delta(
    memory: &mut [f32],
    ([query, key], value, beta): ([&[f32]; 2], &[f32], f32),
    decays: impl Iterator<Item = f32>,
    change: &mut [f32],
    out: &mut [f32],
) {
    let width = value.len();
    change.fill(0.0);
    for ((row, key), decay) in memory.chunks_exact_mut(width).zip(key).zip(decays) {
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
