//! The choice of the positions to which tokens attend, by the scores of an indexer.

use anyhow::{Result, bail};
use architectures::BlockRule;

use super::Cpu;
use super::state::{Half, Kv, State};
use crate::backend::{BlockChoice, ChosenPositions, IndexQueries, LayerSequences, Span};

impl Cpu {
    /// Chooses the positions to which the tokens of a sequence attend, unless that is all of them.
    pub(super) fn choose(
        &self,
        indexer: &IndexQueries<'_, Self>,
        key_dim: usize,
        kv: &Kv,
        span: Span,
    ) -> Option<ChosenPositions> {
        let IndexQueries { queries, weights, heads, head_dim, count } = *indexer;
        if span.end() <= count {
            return None;
        }
        let scores = |token: usize, scores: &mut [f32]| {
            // The queries are as wide as the rows of keys, of which the indexer's are the last
            // elements.
            let row = span.first + token;
            let mut wide = vec![0.0; heads * key_dim];
            let queries = &queries.numbers[row * heads * head_dim..][..heads * head_dim];
            for (wide, query) in wide.chunks_exact_mut(key_dim).zip(queries.chunks_exact(head_dim)) {
                wide[key_dim - head_dim..].copy_from_slice(query);
            }
            self.scores_of_keys(kv, [&wide, &weights.numbers[row * heads..][..heads]], scores);
        };
        Some(ChosenPositions::new(span, [1, 1], |marks, width| {
            self.pool.for_rows(marks, width, |token, marks| {
                ChosenPositions::choose(span.position + token + 1, count, |own| scores(token, own), marks);
            });
        }))
    }

    /// See [`Backend::choose_blocks`](crate::backend::Backend::choose_blocks).
    pub(super) fn blocks(
        &self,
        choice: &BlockChoice<'_, Self>,
        sequences: &mut LayerSequences<'_, Self>,
    ) -> Result<Vec<Option<ChosenPositions>>> {
        let BlockChoice { queries, keys, heads, head_dim, block, .. } = *choice;
        let mut all = Vec::with_capacity(sequences.sequences.len());
        for sequence in sequences.sequences {
            let span = sequence.span;
            let State::Kv(kv) = sequences.states.get_mut(sequence.id)? else { bail!("invariant: an indexer has keys") };
            kv.append(&keys.numbers[span.first * head_dim..(span.first + span.tokens) * head_dim], &[])?;
            if !choice.is_needed(span) {
                all.push(None);
                continue;
            }
            let products = |token: usize, head: usize, out: &mut [f32]| {
                let query = &queries.numbers[((span.first + token) * heads + head) * head_dim..][..head_dim];
                let dot = |from: usize, to: usize, out: &mut [f32]| {
                    let mut at = 0;
                    for rows in kv.rows(Half::Keys, 0, from, to) {
                        rows.dot(self.instructions, query, &mut out[at..at + rows.len()]);
                        at += rows.len();
                    }
                };
                match choice.rule {
                    BlockRule::Mean => {
                        for (index, out) in out.chunks_exact_mut(1).enumerate() {
                            let last = (index + 1) * block;
                            dot(last - 1, last, out);
                        }
                    }
                    BlockRule::Greatest { .. } => dot(0, out.len(), out),
                }
            };
            all.push(Some(choice.of_sequence(span, |marks, width| {
                self.pool.for_rows(marks, width, |token, marks| {
                    choice.mark(span.position + token, |head, out| products(token, head, out), marks);
                });
            })));
        }
        Ok(all)
    }
}
