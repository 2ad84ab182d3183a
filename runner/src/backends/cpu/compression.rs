//! Compressed entries: how they are made, kept, and chosen.

use anyhow::{Result, bail};
use kernels::float;

use super::recurrent::recurrent;
use super::state::{Entries, Half, Kv, State};
use super::{Act, Cpu};
use crate::backend::{ChosenPositions, Compression, EntryChoice, LayerSequences, Span, entries_seen};

/// Returns the entries of a state.
pub(super) fn entries(state: &State) -> Result<&Kv> {
    match state {
        State::Entries(Entries { kv, .. }) => Ok(kv),
        _ => bail!("invariant: the layer has compressed entries"),
    }
}

/// Values and gates of a sequence: those of its tokens in the pass, and past ones.
#[derive(Clone, Copy)]
struct CompressionInputs<'a> {
    span: Span,
    /// Number of elements of a value and of a gate.
    width: usize,
    /// `[tokens, width]` each.
    own: [&'a [f32]; 2],
    /// `[past positions, values and gates, width]`: the last positions before the span, each at its
    /// remainder by their number.
    past: &'a [f32],
}

impl<'a> CompressionInputs<'a> {
    /// Returns the value and the gate at a position.
    fn at(self, position: usize) -> [&'a [f32]; 2] {
        let width = self.width;
        if let Some(token) = position.checked_sub(self.span.position) {
            return self.own.map(|own| &own[token * width..(token + 1) * width]);
        }
        let place = position % (self.past.len() / (2 * width)) * 2 * width;
        let (value, gate) = self.past[place..place + 2 * width].split_at(width);
        [value, gate]
    }
}

impl Cpu {
    /// See [`Backend::compress`](crate::backend::Backend::compress).
    pub(super) fn compress_segments(
        &self,
        compression: &Compression<Self>,
        [values, gates]: [&Act; 2],
        sequences: &mut LayerSequences<'_, Self>,
        out: &mut [f32],
    ) -> Result<()> {
        let (width, value_width) = (compression.width, compression.value_width());
        for sequence in sequences.sequences {
            let span = sequence.span;
            let state = recurrent(sequences.states, sequence.id)?;
            let of_span = span.first * value_width..(span.first + span.tokens) * value_width;
            let own = [values, gates].map(|x| &x.numbers[of_span.clone()]);
            let inputs = CompressionInputs { span, width: value_width, own, past: &state.numbers };
            self.each_row(&mut out[span.first * width..(span.first + span.tokens) * width], width, |token, out| {
                if (span.position + token + 1).is_multiple_of(compression.every) {
                    compress(compression, inputs, span.position + token, out);
                } else {
                    out.fill(0.0);
                }
            });
            let kept = compression.reach() - 1;
            for token in span.tokens.saturating_sub(kept)..span.tokens {
                let place = (span.position + token) % kept * 2 * value_width;
                let row = &mut state.numbers[place..place + 2 * value_width];
                for (row, own) in row.chunks_exact_mut(value_width).zip(own) {
                    row.copy_from_slice(&own[token * value_width..(token + 1) * value_width]);
                }
            }
            state.length = span.end();
        }
        Ok(())
    }

    /// See [`Backend::choose_entries`](crate::backend::Backend::choose_entries).
    pub(super) fn choose_among_entries(
        &self,
        choice: &EntryChoice<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Vec<Option<ChosenPositions>>> {
        let EntryChoice { queries, weights, heads, head_dim, count, every } = *choice;
        sequences.each(|span, state| {
            let (kv, all) = (entries(state)?, span.end() / every);
            if all <= count {
                return Ok(None);
            }
            let scores = |token: usize, scores: &mut [f32]| {
                let row = span.first + token;
                let queries = &queries.numbers[row * heads * head_dim..][..heads * head_dim];
                let weights = &weights.numbers[row * heads..][..heads];
                self.scores_of_keys(kv, [queries, weights], scores);
            };
            Ok(Some(ChosenPositions::of_entries(span, every, |marks, width| {
                self.pool.for_rows(marks, width, |token, marks| {
                    let visible = entries_seen(span.position + token, every);
                    ChosenPositions::choose(visible, count, |own| scores(token, own), &mut marks[..all]);
                });
            })))
        })
    }

    /// Writes `Σ weights[h] · relu(query[h] · key)` over the heads, for the first keys.
    pub(super) fn scores_of_keys(&self, kv: &Kv, [queries, weights]: [&[f32]; 2], scores: &mut [f32]) {
        scores.fill(0.0);
        let mut at = 0;
        for rows in kv.rows(Half::Keys, 0, 0, scores.len()) {
            let own = &mut scores[at..at + rows.len()];
            at += rows.len();
            // The products of a block of keys with all heads, so that each key is read once.
            float::with_buffer(weights.len() * own.len(), |products| {
                rows.dots(self.instructions, queries, products, own.len());
                for (products, weight) in products.chunks_exact(own.len()).zip(weights) {
                    for (score, product) in own.iter_mut().zip(products) {
                        *score += weight * product.max(0.0);
                    }
                }
            });
        }
    }
}

/// Makes the entry of the segment that ends at a position.
fn compress(compression: &Compression<Cpu>, inputs: CompressionInputs<'_>, last: usize, out: &mut [f32]) {
    let (width, reach) = (compression.width, compression.reach());
    // The positions from which the entry is made; the first segment has none before it.
    let indexes = (reach - 1).saturating_sub(last)..reach;
    let place = |index: usize| (last + 1 + index - reach, compression.part(index));
    let bias = |index: usize| {
        let first = index % compression.every * inputs.width;
        &compression.bias[first..first + inputs.width]
    };
    float::with_buffer(2 * width, |scratch| {
        let (largest, sums) = scratch.split_at_mut(width);
        largest.fill(f32::NEG_INFINITY);
        for index in indexes.clone() {
            let (position, part) = place(index);
            let [_, gate] = inputs.at(position);
            for ((largest, gate), bias) in largest.iter_mut().zip(&gate[part.clone()]).zip(&bias(index)[part]) {
                *largest = largest.max(gate + bias);
            }
        }
        sums.fill(0.0);
        out.fill(0.0);
        for index in indexes {
            let (position, part) = place(index);
            let [value, gate] = inputs.at(position).map(|row| &row[part.clone()]);
            let numbers = value.iter().zip(gate).zip(&bias(index)[part]).zip(&*largest);
            for ((((value, gate), bias), largest), (out, sum)) in numbers.zip(out.iter_mut().zip(sums.iter_mut())) {
                let share = (gate + bias - largest).exp();
                *sum += share;
                *out += share * value;
            }
        }
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out /= *sum);
    });
}
