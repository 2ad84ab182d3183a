//! Rotary position embedding (`RoPE`): its frequencies.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use crate::blueprint::Tensor;

/// Scaling of rotary frequencies beyond the original context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies are scaled by the same factor.
    Linear {
        /// Divisor of the positions.
        factor: f64,
    },
    /// Llama 3: long wavelengths are scaled by the factor, short ones are not, with a smooth
    /// transition.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths longer than `original_context / low_frequency_factor` are divided.
        low_frequency_factor: f64,
        /// Wavelengths shorter than `original_context / high_frequency_factor` are kept.
        high_frequency_factor: f64,
        /// Context of the first training, in tokens.
        original_context: u64,
    },
    /// `YaRN` (arXiv 2309.00071): low frequencies are scaled by the factor, high ones are not, with
    /// a linear ramp between them.
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// Frequencies with more rotations than this in the original context are kept.
        beta_fast: f64,
        /// Frequencies with fewer rotations than this in the original context are divided.
        beta_slow: f64,
        /// Context of the first training, in tokens.
        original_context: u64,
        /// Whether the ends of the ramp are rounded outwards to whole elements.
        truncate: bool,
    },
    /// Proportional `RoPE` (Gemma 4): only the first pairs of a head are rotated. Unlike with
    /// [`Rope::dimension`], pairs and frequencies are those of the whole head.
    Proportional {
        /// Share of the pairs that are rotated, rounded down; 0 if none is.
        share: f64,
        /// Divisor of the frequencies.
        factor: f64,
    },
    /// `LongRoPE` (arXiv 2402.13753): a separate divisor for each frequency.
    LongRope {
        /// Divisors for sequences within the original context.
        short: Vec<f64>,
        /// Divisors for longer sequences.
        long: Vec<f64>,
        /// Context of the first training, in tokens.
        original_context: u64,
    },
}

/// Tensors `[rotated elements / 2]` that divide frequencies after scaling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Divisors {
    /// Divisors for all sequences: GGUF's `rope_freqs.weight`.
    Same(Tensor),
    /// GGUF's `rope_factors_short.weight` and `rope_factors_long.weight`. Unlike in
    /// [`RopeScaling::LongRope`], all sequences use the long divisors if the loaded context is
    /// longer than the original one.
    ByContext {
        /// Divisors within the original context.
        short: Tensor,
        /// Divisors beyond the original context.
        long: Tensor,
        /// Context of the first training, in tokens.
        original_context: u64,
    },
}

/// Position of a token on which an angle depends. A token of text has the same position on all
/// axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Place of the token, or of the picture that it is a part of, in the sequence.
    Time,
    /// Row in the picture.
    Row,
    /// Column in the picture.
    Column,
}

/// Axes of the pairs of a head, for models whose tokens have several positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeAxes {
    /// Runs of pairs for time, row and column, with these lengths (Qwen2-VL, arXiv 2409.12191).
    Runs([u64; 3]),
    /// Every third pair from the second one on is for rows, and from the third one on for columns,
    /// as many as the numbers say; all others are for time (Qwen3-VL).
    Interleaved([u64; 3]),
    /// The first half of the pairs is for rows, the second half for columns. Both have the
    /// frequencies of a head of half the size.
    Halves,
    /// The first half of the pairs is for rows, with every second frequency from the first one on;
    /// the second half is for columns, with the other frequencies (Pixtral).
    Alternating,
    /// All pairs are for rows.
    Rows,
    /// All pairs are for columns.
    Columns,
}

/// Criterion for choosing between a model's two sets of frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Sequences with more tokens than this use the second set.
    Length(u64),
    /// Sequences use the second set if their context is longer than this, in tokens.
    Context(u64),
}

/// Rotary position embedding of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
    /// Number of rotated elements of a head, from its start; `None` means all.
    pub dimension: Option<u64>,
    /// Tensors that divide the frequencies.
    pub divisors: Option<Divisors>,
    /// Factor of rotated elements.
    pub magnitude: f64,
    /// Whether pairs are rotated by the negative angles.
    pub reversed: bool,
    /// Axes of the pairs; `None` if tokens have one position.
    pub axes: Option<RopeAxes>,
}

impl RopeAxes {
    /// Returns the axis of each of the `count` pairs of a head. Pairs to which the numbers give no
    /// axis are for time.
    pub fn of_pairs(self, count: usize) -> Vec<Axis> {
        (0..count).map(|pair| self.of_pair(pair, count)).collect()
    }

    fn of_pair(self, pair: usize, count: usize) -> Axis {
        match self {
            Self::Runs([time, rows, columns]) => {
                let (pair, ends) = (pair as u64, [time, time.saturating_add(rows)]);
                if (ends[0]..ends[1]).contains(&pair) {
                    Axis::Row
                } else if (ends[1]..ends[1].saturating_add(columns)).contains(&pair) {
                    Axis::Column
                } else {
                    Axis::Time
                }
            }
            Self::Interleaved([_, rows, columns]) => match (pair % 3, pair as u64 / 3) {
                (1, before) if before < rows => Axis::Row,
                (2, before) if before < columns => Axis::Column,
                _ => Axis::Time,
            },
            Self::Halves | Self::Alternating if pair < count / 2 => Axis::Row,
            Self::Rows => Axis::Row,
            Self::Halves | Self::Alternating | Self::Columns => Axis::Column,
        }
    }
}

impl Rope {
    /// Creates a `RoPE` with unscaled frequencies.
    pub fn plain(theta: f64) -> Self {
        Self {
            theta,
            scaling: RopeScaling::None,
            dimension: None,
            divisors: None,
            magnitude: 1.0,
            reversed: false,
            axes: None,
        }
    }

    /// Returns a `RoPE` with the same base and this scaling; rotated elements are multiplied by
    /// `magnitude`.
    pub fn scaled(&self, scaling: RopeScaling, magnitude: f64) -> Self {
        Self { scaling, magnitude, divisors: None, ..self.clone() }
    }

    /// Returns the number of rotated elements of a head.
    pub fn rotated(&self, head_dim: u64) -> u64 {
        self.dimension.unwrap_or(head_dim)
    }

    /// True if conversion between folders and GGUF files does not support this `RoPE` yet.
    pub fn is_unusual(&self) -> bool {
        let stretched = matches!(
            self.scaling,
            RopeScaling::Yarn { .. } | RopeScaling::LongRope { .. } | RopeScaling::Proportional { .. }
        );
        let by_context = matches!(self.divisors, Some(Divisors::ByContext { .. }));
        stretched || by_context || self.reversed || (self.magnitude - 1.0).abs() > f64::EPSILON
    }

    /// Returns all parameters, which must be positive.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        let scaling = match &self.scaling {
            RopeScaling::None => vec![],
            RopeScaling::Linear { factor } | RopeScaling::Proportional { factor, .. } => vec![*factor],
            RopeScaling::Llama3 {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_context,
            } => {
                vec![*factor, *low, *high, *original_context as f64]
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, .. } => {
                vec![*factor, *beta_fast, *beta_slow, *original_context as f64]
            }
            RopeScaling::LongRope { short, long, original_context } => {
                [short.as_slice(), long, &[*original_context as f64]].concat()
            }
        };
        [self.theta, self.magnitude].into_iter().chain(scaling).collect()
    }

    /// Returns the criterion for choosing between two sets of frequencies, if there are two.
    pub fn switch(&self) -> Option<Switch> {
        match (&self.scaling, &self.divisors) {
            (RopeScaling::LongRope { original_context, .. }, _) => Some(Switch::Length(*original_context)),
            (_, Some(Divisors::ByContext { original_context, .. })) => Some(Switch::Context(*original_context)),
            _ => None,
        }
    }

    /// Returns the rotary frequencies (radians per position) for a head of `head_dim` elements, one
    /// for each pair of rotated elements, on the pair's axis. `long` selects one of two sets, see
    /// [`switch`](Self::switch). [`divisors`](Self::divisors) are not applied.
    ///
    /// Source of the rules: `modeling_rope_utils.py` of Hugging Face transformers.
    pub fn frequencies(&self, head_dim: u64, long: bool) -> Vec<f64> {
        if self.axes == Some(RopeAxes::Halves) {
            let half = Self { axes: None, dimension: None, ..self.clone() };
            return half.frequencies(self.rotated(head_dim) / 2, long).repeat(2);
        }
        if self.axes == Some(RopeAxes::Alternating) {
            let all = Self { axes: None, ..self.clone() }.frequencies(head_dim, long);
            let every_second = |first: usize| all.iter().skip(first).step_by(2).copied();
            return every_second(0).chain(every_second(1)).collect();
        }
        let dimension = self.rotated(head_dim);
        let sign = if self.reversed { -1.0 } else { 1.0 };
        let plain = (0..dimension / 2).map(|i| sign * self.theta.powf(-((2 * i) as f64) / dimension as f64));
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            RopeScaling::Proportional { share, factor } => {
                let rotated = share * dimension as f64 / 2.0;
                let is_rotated = |pair: usize| pair as f64 + 1.0 <= rotated;
                plain.enumerate().map(|(pair, f)| if is_rotated(pair) { f / factor } else { 0.0 }).collect()
            }
            RopeScaling::Llama3 {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_context,
            } => {
                let original = *original_context as f64;
                let stretch = |f: f64| {
                    let wavelength = 2.0 * PI / f.abs();
                    if wavelength < original / high {
                        f
                    } else if wavelength > original / low || high <= low {
                        f / factor
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                plain.map(stretch).collect()
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, truncate, .. } => {
                let original = *original_context as f64;
                // Returns the element whose frequency has this many rotations in the original
                // context.
                let element =
                    |turns: f64| dimension as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
                let (low, high) = (element(*beta_fast), element(*beta_slow));
                let (low, high) = if *truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(dimension as f64 - 1.0));
                let high = if (high - low).abs() < f64::EPSILON { low + 0.001 } else { high };
                let stretch = |(i, f): (usize, f64)| {
                    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * ramp + f * (1.0 - ramp)
                };
                plain.enumerate().map(stretch).collect()
            }
            RopeScaling::LongRope { short, long: own, .. } => {
                let divisors = if long { own } else { short };
                plain.zip(divisors).map(|(f, divisor)| f / divisor).collect()
            }
        }
    }
}

impl Divisors {
    /// Returns the tensor of one of the two sets.
    pub fn tensor(&self, wants_long: bool) -> &Tensor {
        match self {
            Self::Same(tensor) => tensor,
            Self::ByContext { short, long, .. } => {
                if wants_long {
                    long
                } else {
                    short
                }
            }
        }
    }

    /// Returns all tensors.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let second = matches!(self, Self::ByContext { .. }).then(|| self.tensor(true));
        std::iter::once(self.tensor(false)).chain(second)
    }
}

/// Returns `YaRN`'s growth of attention with the extension of the context:
/// `0.1 · weight · ln(factor) + 1`.
pub(crate) fn yarn_magnitude(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_only_long_wavelengths() {
        let plain = Rope::plain(500_000.0);
        let stretched = plain.scaled(
            RopeScaling::Llama3 {
                factor: 8.0,
                low_frequency_factor: 1.0,
                high_frequency_factor: 4.0,
                original_context: 8192,
            },
            1.0,
        );
        let (a, b) = (plain.frequencies(128, false), stretched.frequencies(128, false));
        assert_eq!(a.len(), 64);
        assert!((a[0] - 1.0).abs() < 1e-12 && (b[0] - 1.0).abs() < 1e-12);
        assert!((a[63] / b[63] - 8.0).abs() < 1e-9);
        assert!(b.windows(2).all(|pair| pair[0] > pair[1]));
    }

    #[test]
    fn pairs_have_axes() {
        let axes = |axes: RopeAxes, count| -> String {
            let letter = |axis: &Axis| match axis {
                Axis::Time => 't',
                Axis::Row => 'r',
                Axis::Column => 'c',
            };
            axes.of_pairs(count).iter().map(letter).collect()
        };
        assert_eq!(axes(RopeAxes::Runs([4, 2, 2]), 8), "ttttrrcc");
        assert_eq!(axes(RopeAxes::Runs([1, u64::MAX, 2]), 4), "trrr");
        assert_eq!(axes(RopeAxes::Interleaved([4, 2, 2]), 8), "trctrctt");
        assert_eq!(axes(RopeAxes::Interleaved([11, 11, 10]), 32).matches('c').count(), 10);
        assert_eq!(axes(RopeAxes::Halves, 4), "rrcc");
        let halves = Rope { axes: Some(RopeAxes::Halves), ..Rope::plain(100.0) };
        let found = halves.frequencies(8, false);
        assert!(found.iter().zip([1.0, 0.1, 1.0, 0.1]).all(|(found, expected)| (found - expected).abs() < 1e-12));
        let alternating = Rope { axes: Some(RopeAxes::Alternating), ..Rope::plain(10_000.0) };
        let found = alternating.frequencies(8, false);
        assert!(found.iter().zip([1.0, 0.01, 0.1, 0.001]).all(|(found, expected)| (found - expected).abs() < 1e-12));
    }

    #[test]
    fn yarn_keeps_what_turns_often() {
        let plain = Rope::plain(10_000.0);
        let yarn = plain.scaled(
            RopeScaling::Yarn { factor: 4.0, beta_fast: 32.0, beta_slow: 1.0, original_context: 4096, truncate: true },
            yarn_magnitude(4.0, 1.0),
        );
        let (a, b) = (plain.frequencies(64, false), yarn.frequencies(64, false));
        assert!((a[0] - b[0]).abs() < 1e-12 && (a[31] / b[31] - 4.0).abs() < 1e-9);
        assert!((yarn.magnitude - 1.138_629_436_111_989).abs() < 1e-12);
    }

    #[test]
    fn long_sequences_have_frequencies_of_their_own() {
        let rope = Rope { dimension: Some(4), ..Rope::plain(100.0) }
            .scaled(RopeScaling::LongRope { short: vec![1.0, 2.0], long: vec![4.0, 8.0], original_context: 64 }, 1.5);
        assert_eq!(rope.switch(), Some(Switch::Length(64)));
        for (long, first, second) in [(false, 1.0, 0.05), (true, 0.25, 0.0125)] {
            let frequencies = rope.frequencies(8, long);
            assert_eq!(frequencies.len(), 2);
            assert!((frequencies[0] - first).abs() < 1e-12 && (frequencies[1] - second).abs() < 1e-12);
        }
    }
}
