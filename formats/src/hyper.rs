//! Hyper-parameters: the numbers of an architecture, the same whatever file they came from.
//!
//! One struct is made from `config.json` ([`HyperParameters::from_config`]) or from GGUF metadata
//! ([`HyperParameters::from_gguf`]), stored in the model's config, and used by the memory estimate and the runner alike.

mod config_json;
mod gguf;

pub(crate) use gguf::{GEMMA3_SLIDING_PATTERN, GEMMA3_SLIDING_THETA};
use serde::{Deserialize, Serialize};

use crate::Error;

/// An architecture that the runner has a description of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// Llama 1 to 3 and those built like it.
    Llama,
    /// Gemma 3, text only.
    Gemma3,
}

impl Architecture {
    /// Every architecture that can be run.
    pub const ALL: [Self; 2] = [Self::Llama, Self::Gemma3];

    /// The name in configs and GGUF keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Gemma3 => "gemma3",
        }
    }

    fn unknown(name: &str) -> Error {
        let supported: Vec<&str> = Self::ALL.iter().map(|a| a.name()).collect();
        Error::Architecture { name: name.chars().take(60).collect(), supported: supported.join(", ") }
    }
}

/// The activation function of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// GELU by the error function.
    Gelu,
}

/// Which elements of a head form the pairs that `RoPE` rotates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeLayout {
    /// Element `i` with `i + dim/2`, as Hugging Face stores weights.
    Half,
    /// Element `2i` with `2i + 1`, as GGUF files of the llama family store q and k.
    Interleaved,
}

/// How rotary frequencies are stretched beyond the original context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
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

/// Rotary position embedding of one kind of layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How they are stretched.
    pub scaling: RopeScaling,
}

impl Rope {
    /// All its numbers; each is to be positive.
    fn numbers(&self) -> Vec<f64> {
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

    /// The rotary frequencies (radians per position) for a head of `dimension` elements, `dimension / 2` of them.
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

/// The numbers of a decoder. Sizes are in elements, contexts in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HyperParameters {
    /// Which description the numbers fill in.
    pub architecture: Architecture,
    /// Rows of the embedding.
    pub vocabulary: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of the MLP.
    pub intermediate: u64,
    /// Number of layers.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// The longest context that the model was made for.
    pub context: u64,
    /// Added under the root of RMS norms.
    pub norm_epsilon: f64,
    /// Added to norm weights: 1 for Gemma from Hugging Face, 0 for GGUF files, which have it in the weights.
    pub norm_offset: f64,
    /// Of the MLP.
    pub activation: Activation,
    /// Attention scores are multiplied by it.
    pub attention_scale: f64,
    /// Embeddings are multiplied by it.
    pub embedding_scale: Option<f64>,
    /// The output projection is the embedding.
    pub tied: bool,
    /// Which elements `RoPE` pairs.
    pub rope_layout: RopeLayout,
    /// `RoPE` of layers that attend to everything.
    pub rope: Rope,
    /// `RoPE` of sliding layers, where it is another.
    pub rope_sliding: Option<Rope>,
    /// How far back sliding layers look, in tokens, their own position included.
    pub sliding_window: Option<u64>,
    /// For each layer whether it slides.
    pub sliding: Vec<bool>,
}

/// More layers than any model has; what a file says beyond it is refused by [`HyperParameters::check`].
const MAX_LAYERS: u64 = 4096;

/// One flag for each layer, made before the number of layers is checked: never more than a few.
fn flags(layers: u64, flag: impl Fn(u64) -> bool) -> Vec<bool> {
    (0..layers.min(MAX_LAYERS + 1)).map(flag).collect()
}

/// Which layers slide where every `pattern`-th attends to everything.
fn sliding_but_every(pattern: u64, layers: u64) -> Vec<bool> {
    flags(layers, |layer| (layer + 1) % pattern != 0)
}

impl HyperParameters {
    /// Holds the numbers against one another and against sizes that no model has, so that nothing absurd is allocated.
    ///
    /// For every set of numbers that did not come from a reader of this crate.
    pub fn check(self, source_name: &'static str) -> Result<Self, Error> {
        let fail = |reason: String| Err(Error::Config { source_name, reason });
        for (what, value, largest) in [
            ("vocabulary size", self.vocabulary, 1 << 24),
            ("hidden size", self.hidden, 1 << 20),
            ("intermediate size", self.intermediate, 1 << 22),
            ("number of layers", self.layers, MAX_LAYERS),
            ("number of attention heads", self.heads, 1 << 14),
            ("number of key/value heads", self.kv_heads, 1 << 14),
            ("head size", self.head_dim, 1 << 16),
            ("context length", self.context, 1 << 40),
        ] {
            if value == 0 || value > largest {
                return fail(format!("{what} is {value}, expected 1 to {largest}"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return fail(format!(
                "{} attention heads cannot share {} key/value heads evenly",
                self.heads, self.kv_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return fail(format!("head size is {}, RoPE needs an even one", self.head_dim));
        }
        let mut positive = vec![self.norm_epsilon, self.attention_scale, self.embedding_scale.unwrap_or(1.0)];
        for rope in [Some(self.rope), self.rope_sliding].into_iter().flatten() {
            positive.extend(rope.numbers());
        }
        if positive.iter().any(|x| !x.is_finite() || *x <= 0.0) {
            return fail("a norm epsilon, scale or number of RoPE is not a positive number".to_owned());
        }
        if self.sliding_window.is_some_and(|window| window > 1 << 40) {
            return fail("the sliding window is longer than any context".to_owned());
        }
        if self.sliding.len() as u64 != self.layers {
            return fail(format!("{} layer types for {} layers", self.sliding.len(), self.layers));
        }
        if self.sliding.contains(&true) && self.sliding_window.is_none_or(|window| window == 0) {
            return fail("there are sliding layers but no window".to_owned());
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_only_long_wavelengths() {
        let plain = Rope { theta: 500_000.0, scaling: RopeScaling::None };
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_context: 8192,
        };
        let stretched = Rope { scaling, ..plain };
        let (a, b) = (plain.frequencies(128), stretched.frequencies(128));
        assert_eq!(a.len(), 64);
        assert!((a[0] - 1.0).abs() < 1e-12 && (b[0] - 1.0).abs() < 1e-12);
        assert!((a[63] / b[63] - 8.0).abs() < 1e-9);
        assert!(b.windows(2).all(|pair| pair[0] > pair[1]));
    }
}
