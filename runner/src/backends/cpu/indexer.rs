//! The choice of the positions to which tokens attend, by the scores of an indexer.

use super::Cpu;
use super::state::{Half, Kv};
use crate::backend::{ChosenPositions, IndexQueries, Span};

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
            let (own, row) = (scores.len(), span.first + token);
            let mut wide = vec![0.0; heads * key_dim];
            let queries = &queries.numbers[row * heads * head_dim..][..heads * head_dim];
            for (wide, query) in wide.chunks_exact_mut(key_dim).zip(queries.chunks_exact(head_dim)) {
                wide[key_dim - head_dim..].copy_from_slice(query);
            }
            let mut products = vec![0.0; heads * own];
            let mut at = 0;
            for rows in kv.rows(Half::Keys, 0, 0, own) {
                rows.dots(self.instructions, &wide, &mut products[at..], own);
                at += rows.len();
            }
            scores.fill(0.0);
            let weights = &weights.numbers[row * heads..][..heads];
            for (products, weight) in products.chunks_exact(own).zip(weights) {
                for (score, product) in scores.iter_mut().zip(products) {
                    *score += weight * product.max(0.0);
                }
            }
        };
        Some(ChosenPositions::new(span, |marks| {
            self.pool.for_rows(marks, span.end(), |token, marks| {
                ChosenPositions::choose(span.position + token + 1, count, |own| scores(token, own), marks);
            });
        }))
    }
}
