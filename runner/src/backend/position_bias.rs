//! Biases that attention adds to scores, as numbers of the host.

use anyhow::Result;
use architectures::PositionBias as Described;

use crate::weights::Weights;

/// Bias of the score of a query and a key, by their distance.
#[derive(Debug)]
pub(crate) enum PositionBias {
    /// `-slope · distance`, with a slope for each head.
    Slopes(Vec<f32>),
    /// A number for each distance from `-reach` to `reach`, head after head. Farther keys have the
    /// numbers at the ends.
    Table { numbers: Vec<f32>, reach: usize },
}

impl PositionBias {
    /// Loads the bias of attention with so many query heads.
    pub(crate) fn load(weights: &Weights, own: &Described, heads: u64) -> Result<Self> {
        match own {
            Described::Slopes(slopes) => Ok(Self::Slopes(slopes.of_heads(heads).map(|slope| slope as f32).collect())),
            Described::Buckets(buckets) => {
                let (heads, reach) = (heads as usize, buckets.reach.cast_signed());
                let learned = weights.numbers(&buckets.weight, &[buckets.count as usize, heads])?;
                let of_head =
                    |head| (-reach..=reach).map(move |distance| (buckets.of(distance) as usize * heads) + head);
                let numbers = (0..heads).flat_map(of_head).map(|at| learned[at]).collect();
                Ok(Self::Table { numbers, reach: buckets.reach as usize })
            }
        }
    }

    /// Adds the biases of a head to the scores of the query at a position and the keys from
    /// position `first` on.
    pub(crate) fn add(&self, head: usize, query: usize, first: usize, scores: &mut [f32]) {
        match self {
            Self::Slopes(slopes) => {
                for (key, score) in (first..).zip(scores) {
                    *score -= slopes[head] * key.abs_diff(query) as f32;
                }
            }
            Self::Table { numbers, reach } => {
                let own = &numbers[head * (2 * reach + 1)..][..=2 * reach];
                for (key, score) in (first..).zip(scores) {
                    *score += own[(key + reach).saturating_sub(query).min(2 * reach)];
                }
            }
        }
    }
}
