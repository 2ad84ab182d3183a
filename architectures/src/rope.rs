//! Rotary position embedding: the frequencies.

use crate::blueprint::Tensor;

/// How rotary frequencies are stretched beyond the original context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All by the same factor.
    Linear {
        /// Positions are divided by it.
        factor: f64,
    },
    /// Llama 3: long wavelengths by the factor, short ones not, smooth in between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths longer than `original_context / low_frequency_factor` are divided.
        low_frequency_factor: f64,
        /// Wavelengths shorter than `original_context / high_frequency_factor` are kept.
        high_frequency_factor: f64,
        /// The context of the first training, in tokens.
        original_context: u64,
    },
}

/// Rotary position embedding of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How they are stretched.
    pub scaling: RopeScaling,
    /// A tensor `[head_dim / 2]` of numbers that frequencies are divided by after scaling: GGUF's `rope_freqs.weight`.
    pub divisors: Option<Tensor>,
}

impl Rope {
    /// Frequencies that nothing stretches.
    pub fn plain(theta: f64) -> Self {
        Self { theta, scaling: RopeScaling::None, divisors: None }
    }

    /// The same base, stretched.
    pub fn scaled(&self, scaling: RopeScaling) -> Self {
        Self { theta: self.theta, scaling, divisors: None }
    }

    /// All its numbers; each is to be positive.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        let scaling = match self.scaling {
            RopeScaling::None => vec![],
            RopeScaling::Linear { factor } => vec![factor],
            RopeScaling::Llama3 {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_context,
            } => {
                vec![factor, low, high - low, original_context as f64]
            }
        };
        [self.theta].into_iter().chain(scaling).collect()
    }

    /// The rotary frequencies (radians per position) for a head of `dimension` elements, `dimension / 2` of them; those of
    /// [`divisors`](Self::divisors) are not applied.
    ///
    /// Source of the Llama 3 rule: `modeling_rope_utils.py` of Hugging Face transformers.
    pub fn frequencies(&self, dimension: u64) -> Vec<f64> {
        let plain = (0..dimension / 2).map(|i| self.theta.powf(-((2 * i) as f64) / dimension as f64));
        match self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            RopeScaling::Llama3 {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_context,
            } => {
                let original = original_context as f64;
                let stretch = |f: f64| {
                    let wavelength = 2.0 * std::f64::consts::PI / f;
                    if wavelength < original / high {
                        f
                    } else if wavelength > original / low {
                        f / factor
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                plain.map(stretch).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_only_long_wavelengths() {
        let plain = Rope::plain(500_000.0);
        let stretched = plain.scaled(RopeScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_context: 8192,
        });
        let (a, b) = (plain.frequencies(128), stretched.frequencies(128));
        assert_eq!(a.len(), 64);
        assert!((a[0] - 1.0).abs() < 1e-12 && (b[0] - 1.0).abs() < 1e-12);
        assert!((a[63] / b[63] - 8.0).abs() < 1e-9);
        assert!(b.windows(2).all(|pair| pair[0] > pair[1]));
    }
}
