//! Biases of attention scores that depend on the distance between two tokens.

use serde::{Deserialize, Serialize};

use crate::blueprint::Tensor;

/// Bias that is added to the score of a query and a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionBias {
    /// `-slope · distance`, with a slope for each head (`ALiBi`, arXiv 2108.12409).
    Slopes(Slopes),
    /// A learned number for each head and range of distances (T5, arXiv 1910.10683).
    Buckets(Buckets),
}

/// Slopes of heads. With `n`, the largest power of two that is at most the number of heads, head
/// `h < n` has the slope `scale · 2^(-exponent · (h + 1) / n)`. The others have the slopes
/// `scale · 2^(-exponent · (2(h - n) + 1) / 2n)`, halfway between the exponents of the first ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slopes {
    /// Largest exponent.
    pub exponent: f64,
    /// Factor of all slopes.
    pub scale: f64,
}

impl Slopes {
    /// Slopes with the exponent of the paper.
    pub const USUAL: Self = Self { exponent: 8.0, scale: 1.0 };

    /// Returns the slope of each head.
    pub fn of_heads(self, heads: u64) -> impl Iterator<Item = f64> {
        let whole = (heads / 2 + 1).next_power_of_two();
        (0..heads).map(move |head| {
            let (step, steps) = if head < whole { (head + 1, whole) } else { (2 * (head - whole) + 1, 2 * whole) };
            self.scale * (-self.exponent * step as f64 / steps as f64).exp2()
        })
    }
}

/// Learned biases for ranges of distances. One half of the buckets is for earlier keys, the other
/// for later ones. Half of each half has one distance per bucket; the ranges of the other buckets
/// grow with the logarithm of the distance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buckets {
    /// `[count, heads]`.
    pub weight: Tensor,
    /// Number of buckets; a multiple of 4.
    pub count: u64,
    /// Distance from which all keys are in the last bucket.
    pub reach: u64,
}

impl Buckets {
    /// Returns the bucket of a key at a distance from the query; negative before it.
    #[expect(clippy::cast_sign_loss, reason = "distances with a bucket of their own come first")]
    pub fn of(&self, distance: i64) -> u64 {
        let half = self.count / 2;
        let exact = half / 2;
        let first = if distance > 0 { half } else { 0 };
        let distance = distance.unsigned_abs();
        if distance < exact {
            return first + distance;
        }
        // In float32, as transformers computes the boundaries of the ranges.
        let share = (distance as f32 / exact as f32).ln() / (self.reach as f32 / exact as f32).ln();
        let further = (share * (half - exact) as f32) as u64;
        first + (exact + further).min(half - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slopes of transformers' `build_alibi_tensor` for 12 heads.
    #[test]
    fn slopes_of_other_numbers_of_heads_are_between_those_of_powers_of_two() {
        let slopes: Vec<f64> = Slopes::USUAL.of_heads(12).collect();
        let expected = [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0, -0.5, -1.5, -2.5, -3.5];
        for (slope, exponent) in slopes.iter().zip(expected) {
            assert!((slope - f64::exp2(exponent)).abs() < 1e-12, "{slopes:?}");
        }
        let is = |heads: u64, exponents: &[f64]| {
            let slopes = Slopes::USUAL.of_heads(heads);
            slopes.zip(exponents).all(|(slope, exponent)| (slope - f64::exp2(*exponent)).abs() < 1e-12)
        };
        assert!(is(1, &[-8.0]) && is(2, &[-4.0, -8.0]) && is(4, &[-2.0, -4.0, -6.0, -8.0]));
    }

    /// Buckets of transformers' `relative_position_bucket`, with 32 buckets up to a distance of
    /// 128.
    #[test]
    fn far_keys_share_buckets() {
        let buckets = Buckets { weight: Tensor::named("bias"), count: 32, reach: 128 };
        for (distance, bucket) in [
            (0, 0),
            (-1, 1),
            (-7, 7),
            (-8, 8),
            (-11, 8),
            (-12, 9),
            (-90, 14),
            (-91, 15),
            (-500, 15),
            (1, 17),
            (90, 30),
            (400, 31),
        ] {
            assert_eq!(buckets.of(distance), bucket, "{distance}");
        }
    }
}
