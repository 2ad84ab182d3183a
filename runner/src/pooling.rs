//! How the hidden states of a text become one vector.
//!
//! | where | what says so |
//! |---|---|
//! | GGUF | the key `ARCHITECTURE.pooling_type`: 1 mean, 2 first, 3 last |
//! | sentence-transformers | `1_Pooling/config.json`: `pooling_mode_mean_tokens`, `…_cls_token`, `…_lasttoken` |
//! | neither | the mean of all tokens |
//!
//! llama.cpp pools nothing where a model does not say; a mean is what its server is asked for (`--pooling mean`) where one
//! vector is wanted of such a model.

use formats::Gguf;
use serde_json::Value;

use crate::model::Documents;

/// What is taken of the hidden states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The mean of all tokens.
    #[default]
    Mean,
    /// That of the first token.
    First,
    /// That of the last token.
    Last,
}

impl Pooling {
    /// What the documents of a model say.
    pub(crate) fn of(documents: Documents<'_>) -> Self {
        let named = documents.iter().find(|(name, _)| name.ends_with("1_Pooling/config.json"));
        let config = named.and_then(|(_, raw)| serde_json::from_slice(raw).ok());
        if let Some(pooling) = config.as_ref().and_then(Self::of_config) {
            return pooling;
        }
        documents.iter().find_map(|(_, bytes)| Self::of_gguf(bytes)).unwrap_or_default()
    }

    fn of_config(config: &Value) -> Option<Self> {
        let modes = [
            ("pooling_mode_mean_tokens", Self::Mean),
            ("pooling_mode_cls_token", Self::First),
            ("pooling_mode_lasttoken", Self::Last),
        ];
        modes.into_iter().find(|(name, _)| config.get(name) == Some(&Value::Bool(true))).map(|(_, pooling)| pooling)
    }

    fn of_gguf(bytes: &[u8]) -> Option<Self> {
        let gguf = Gguf::parse_header(bytes).ok()?;
        let architecture = gguf.text("general.architecture")?;
        match gguf.unsigned(&format!("{architecture}.pooling_type"))? {
            1 => Some(Self::Mean),
            2 => Some(Self::First),
            3 => Some(Self::Last),
            _ => None,
        }
    }

    /// Adds the hidden state of the token at `position` to what is pooled; nothing is at first.
    pub(crate) fn add(self, pooled: &mut Vec<f64>, hidden: &[f32], position: usize) {
        let hidden = hidden.iter().map(|x| f64::from(*x));
        match self {
            Self::Mean if position > 0 => pooled.iter_mut().zip(hidden).for_each(|(sum, x)| *sum += x),
            Self::First if position > 0 => {}
            _ => *pooled = hidden.collect(),
        }
    }

    /// The vector of a text of so many tokens.
    pub(crate) fn finish(self, mut pooled: Vec<f64>, tokens: usize) -> Vec<f64> {
        if self == Self::Mean {
            for sum in &mut pooled {
                *sum /= tokens.max(1) as f64;
            }
        }
        pooled
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pools_as_it_says() {
        for (pooling, expect) in
            [(Pooling::Mean, [2.0, 4.0]), (Pooling::First, [1.0, 2.0]), (Pooling::Last, [3.0, 6.0])]
        {
            let mut pooled = Vec::new();
            pooling.add(&mut pooled, &[1.0, 2.0], 0);
            pooling.add(&mut pooled, &[3.0, 6.0], 1);
            assert_eq!(pooling.finish(pooled, 2), expect, "{pooling:?}");
        }
    }

    #[test]
    fn models_say_how() {
        let of = |config: Value| Pooling::of_config(&config);
        assert_eq!(of(json!({"pooling_mode_cls_token": false, "pooling_mode_lasttoken": true})), Some(Pooling::Last));
        assert_eq!(of(json!({"pooling_mode_mean_tokens": true})), Some(Pooling::Mean));
        assert_eq!(of(json!({})), None);
        assert_eq!(Pooling::of(Documents::new(&[])), Pooling::Mean);
    }
}
