//! Pooling: how the hidden states of a text become one vector.
//!
//! | source | setting |
//! |---|---|
//! | GGUF | the key `ARCHITECTURE.pooling_type`: 1 mean, 2 first, 3 last; 4 is a head that scores |
//! | sentence-transformers | `1_Pooling/config.json`: `pooling_mode_…`, or `pooling_mode` |
//! | neither | the mean of all tokens |
//!
//! llama.cpp pools nothing if a model has no setting; its server needs `--pooling mean` to give one
//! vector for such a model. Several modes give one vector after the other, in the order of
//! [`Mode::ALL`] (sentence-transformers, `modules/pooling.py`).

use anyhow::{Result, ensure};
use architectures::ScorerInput;
use formats::Gguf;
use serde_json::Value;

use crate::documents::Documents;

/// A mode of pooling hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The hidden state of the first token.
    First,
    /// The maximum of each element.
    Max,
    /// The mean over all tokens.
    Mean,
    /// The sum over all tokens, divided by the square root of their number.
    MeanSqrt,
    /// The weighted mean over all tokens, where the weight is the token's position, counted from 1.
    Weighted,
    /// The hidden state of the last token.
    Last,
}

impl Mode {
    /// All modes, each with its name and its flag in `1_Pooling/config.json`.
    const ALL: [(Self, &str, &str); 6] = [
        (Self::First, "cls", "pooling_mode_cls_token"),
        (Self::Max, "max", "pooling_mode_max_tokens"),
        (Self::Mean, "mean", "pooling_mode_mean_tokens"),
        (Self::MeanSqrt, "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
        (Self::Weighted, "weightedmean", "pooling_mode_weightedmean_tokens"),
        (Self::Last, "lasttoken", "pooling_mode_lasttoken"),
    ];
}

/// How a model pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pooling {
    modes: Vec<Mode>,
    /// Whether the tokens of a prompt before a text are pooled too.
    pub(crate) includes_prompt: bool,
}

impl Default for Pooling {
    fn default() -> Self {
        Self::of_mode(Mode::Mean)
    }
}

impl From<ScorerInput> for Pooling {
    fn from(input: ScorerInput) -> Self {
        Self::of_mode(match input {
            ScorerInput::First => Mode::First,
            ScorerInput::Mean => Mode::Mean,
            ScorerInput::Last => Mode::Last,
        })
    }
}

/// The intermediate result for a text: a vector for each mode, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Pooled {
    sums: Vec<f64>,
    count: f64,
    /// The sum of the weights of [`Mode::Weighted`].
    weight: f64,
}

impl Pooling {
    fn of_mode(mode: Mode) -> Self {
        Self { modes: vec![mode], includes_prompt: true }
    }

    /// Reads the setting from the documents of a model.
    ///
    /// # Errors
    /// Fails if a mode is unknown.
    pub(crate) fn of(documents: Documents<'_>) -> Result<Self> {
        let named = documents.iter().find(|(name, _)| name.ends_with("1_Pooling/config.json"));
        if let Some(config) =
            named.and_then(|(_, raw)| serde_json::from_slice::<Value>(&formats::json::tolerant(raw)).ok())
        {
            return Self::of_config(&config);
        }
        Ok(documents.iter().find_map(|(_, bytes)| Self::of_gguf(bytes)).unwrap_or_default())
    }

    fn of_config(config: &Value) -> Result<Self> {
        // Newer files list the names of the modes, older files have a flag for each mode.
        let names: Vec<&str> = match config.get("pooling_mode") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        for name in &names {
            let known = Mode::ALL.iter().any(|(_, own, _)| own == name);
            ensure!(known, "`1_Pooling/config.json` pools by `{name}`, which is not supported");
        }
        let is_set = |(_, name, flag): &&(Mode, &str, &str)| names.contains(name) || config[*flag] == true;
        let modes: Vec<Mode> = Mode::ALL.iter().filter(is_set).map(|(mode, ..)| *mode).collect();
        let default = Self::default();
        Ok(Self {
            modes: if modes.is_empty() { default.modes } else { modes },
            includes_prompt: config["include_prompt"] != false,
        })
    }

    fn of_gguf(bytes: &[u8]) -> Option<Self> {
        let gguf = Gguf::parse_header(bytes).ok()?;
        let architecture = gguf.text("general.architecture")?;
        let mode = match gguf.unsigned(&format!("{architecture}.pooling_type"))? {
            1 => Mode::Mean,
            2 => Mode::First,
            3 => Mode::Last,
            _ => return None,
        };
        Some(Self::of_mode(mode))
    }

    /// Returns the number of modes, each of which gives a vector.
    pub(crate) fn modes(&self) -> usize {
        self.modes.len()
    }

    /// Whether a mode is the maximum of each element.
    pub(crate) fn has_maximum(&self) -> bool {
        self.modes.contains(&Mode::Max)
    }

    /// Adds the hidden state of the token at `position`, counted from the beginning of the text.
    pub(crate) fn add(&self, pooled: &mut Pooled, hidden: &[f32], position: usize) {
        let width = hidden.len();
        let is_first = pooled.sums.is_empty();
        pooled.sums.resize(self.modes.len() * width, 0.0);
        pooled.count += 1.0;
        let weight = position as f64 + 1.0;
        pooled.weight += weight;
        for (mode, sums) in self.modes.iter().zip(pooled.sums.chunks_exact_mut(width.max(1))) {
            for (sum, x) in sums.iter_mut().zip(hidden) {
                let x = f64::from(*x);
                match mode {
                    Mode::First if is_first => *sum = x,
                    Mode::First => {}
                    Mode::Max => *sum = if is_first { x } else { sum.max(x) },
                    Mode::Mean | Mode::MeanSqrt => *sum += x,
                    Mode::Weighted => *sum += weight * x,
                    Mode::Last => *sum = x,
                }
            }
        }
    }

    /// Returns the vector of a text.
    pub(crate) fn finish(&self, mut pooled: Pooled) -> Vec<f64> {
        let width = (pooled.sums.len() / self.modes.len()).max(1);
        for (mode, sums) in self.modes.iter().zip(pooled.sums.chunks_exact_mut(width)) {
            let divisor = match mode {
                Mode::Mean => pooled.count,
                Mode::MeanSqrt => pooled.count.sqrt(),
                Mode::Weighted => pooled.weight,
                Mode::First | Mode::Max | Mode::Last => 1.0,
            };
            for sum in sums {
                *sum /= divisor.max(1.0);
            }
        }
        pooled.sums
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pools_as_it_says() {
        for (mode, expect) in [
            (Mode::Mean, [2.0, 2.0]),
            (Mode::First, [1.0, 6.0]),
            (Mode::Last, [3.0, -2.0]),
            (Mode::Max, [3.0, 6.0]),
            (Mode::MeanSqrt, [4.0 / 2f64.sqrt(), 4.0 / 2f64.sqrt()]),
            (Mode::Weighted, [7.0 / 3.0, 2.0 / 3.0]),
        ] {
            let (pooling, mut pooled) = (Pooling::of_mode(mode), Pooled::default());
            pooling.add(&mut pooled, &[1.0, 6.0], 0);
            pooling.add(&mut pooled, &[3.0, -2.0], 1);
            assert_eq!(pooling.finish(pooled), expect, "{mode:?}");
        }
        let pooling = Pooling { modes: vec![Mode::First, Mode::Last], includes_prompt: true };
        let mut pooled = Pooled::default();
        pooling.add(&mut pooled, &[1.0], 0);
        pooling.add(&mut pooled, &[3.0], 1);
        assert_eq!(pooling.finish(pooled), [1.0, 3.0]);
    }

    #[test]
    fn models_say_how() {
        let of = |config: Value| Pooling::of_config(&config).expect("a pooling");
        let last =
            of(json!({"pooling_mode_cls_token": false, "pooling_mode_lasttoken": true, "include_prompt": false}));
        assert_eq!(last, Pooling { modes: vec![Mode::Last], includes_prompt: false });
        assert_eq!(of(json!({"pooling_mode": "cls"})), Pooling::of_mode(Mode::First));
        let both = of(json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}));
        assert_eq!(both.modes, [Mode::First, Mode::Mean]);
        assert_eq!(of(json!({})), Pooling::default());
        assert!(Pooling::of_config(&json!({"pooling_mode": "attention"})).is_err());
        assert_eq!(Pooling::of(Documents::new(&[])).expect("a pooling"), Pooling::default());
    }
}
