//! From `config.json`, in the classic layout (`rope_theta`, `rope_scaling`) and the newer one (`rope_parameters`).

use serde_json::{Map, Value};

use super::{Activation, Architecture, HyperParameters, Rope, RopeLayout, RopeScaling, flags, sliding_but_every};
use crate::Error;

const SOURCE: &str = "config.json";

impl HyperParameters {
    /// Reads a `config.json`.
    pub fn from_config(raw: &[u8]) -> Result<Self, Error> {
        let value: Value = serde_json::from_slice(raw).map_err(|e| fail(e.to_string()))?;
        let Value::Object(map) = value else { return Err(fail("it is not a JSON object")) };
        let config = Config(&map);
        let model_type = config.text("model_type").ok_or_else(|| fail("`model_type` is missing"))?;
        match model_type {
            "llama" => llama(config)?.check(SOURCE),
            "gemma3_text" => gemma3(config)?.check(SOURCE),
            other => Err(Architecture::unknown(other)),
        }
    }
}

fn fail(reason: impl Into<String>) -> Error {
    Error::Config { source_name: SOURCE, reason: reason.into() }
}

fn llama(config: Config<'_>) -> Result<HyperParameters, Error> {
    let base = base(config, Architecture::Llama, "hidden_act", "silu", false)?;
    Ok(HyperParameters { attention_scale: (base.head_dim as f64).powf(-0.5), ..base })
}

fn gemma3(config: Config<'_>) -> Result<HyperParameters, Error> {
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if config.value(key).is_some() {
            return Err(fail(format!("`{key}` is set; Gemma 3 has none, and it cannot be run yet")));
        }
    }
    let base = base(config, Architecture::Gemma3, "hidden_activation", "gelu_pytorch_tanh", true)?;
    let query_scalar = config.float("query_pre_attn_scalar")?.unwrap_or(256.0);
    let sliding = if let Some(types) = config.value("layer_types") {
        layer_types(types)?
    } else {
        let pattern = config.unsigned("sliding_window_pattern")?.unwrap_or(6);
        if pattern == 0 {
            return Err(fail("`sliding_window_pattern` is 0"));
        }
        sliding_but_every(pattern, base.layers)
    };
    let local_theta = config.float("rope_local_base_freq")?.unwrap_or(10_000.0);
    let rope_sliding = match config.rope_for("sliding_attention")? {
        Some(rope) => rope,
        None => Rope { theta: local_theta, scaling: RopeScaling::None },
    };
    Ok(HyperParameters {
        attention_scale: query_scalar.powf(-0.5),
        embedding_scale: Some((base.hidden as f64).sqrt()),
        norm_offset: 1.0,
        rope_sliding: Some(rope_sliding),
        sliding_window: Some(config.unsigned("sliding_window")?.unwrap_or(4096)),
        sliding,
        ..base
    })
}

/// What all decoders have.
fn base(
    config: Config<'_>,
    architecture: Architecture,
    activation_key: &str,
    activation: &str,
    tied: bool,
) -> Result<HyperParameters, Error> {
    if config.float("partial_rotary_factor")?.is_some_and(|factor| (factor - 1.0).abs() > f64::EPSILON) {
        return Err(fail("`partial_rotary_factor` is not 1; rotating a part of a head cannot be run yet"));
    }
    let heads = config.required("num_attention_heads")?;
    let hidden = config.required("hidden_size")?;
    let layers = config.required("num_hidden_layers")?;
    let head_dim = match config.unsigned("head_dim")? {
        Some(size) => size,
        None if heads > 0 => hidden / heads,
        None => 0,
    };
    let rope = match config.rope_for("full_attention")? {
        Some(rope) => rope,
        None => {
            Rope { theta: config.float("rope_theta")?.unwrap_or(10_000.0), scaling: config.scaling("rope_scaling")? }
        }
    };
    Ok(HyperParameters {
        architecture,
        vocabulary: config.required("vocab_size")?,
        hidden,
        intermediate: config.required("intermediate_size")?,
        layers,
        heads,
        kv_heads: config.unsigned("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        context: config.unsigned("max_position_embeddings")?.unwrap_or(2048),
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-6),
        norm_offset: 0.0,
        activation: self::activation(config.text(activation_key).unwrap_or(activation))?,
        attention_scale: 1.0,
        embedding_scale: None,
        tied: config.flag("tie_word_embeddings")?.unwrap_or(tied),
        rope_layout: RopeLayout::Half,
        rope,
        rope_sliding: None,
        sliding_window: None,
        sliding: flags(layers, |_| false),
    })
}

fn activation(name: &str) -> Result<Activation, Error> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        "gelu" => Ok(Activation::Gelu),
        other => Err(fail(format!("activation `{other}` is not supported, expected silu, gelu or gelu_pytorch_tanh"))),
    }
}

fn layer_types(types: &Value) -> Result<Vec<bool>, Error> {
    let types = types.as_array().ok_or_else(|| fail("`layer_types` is not a list"))?;
    types
        .iter()
        .map(|kind| match kind.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => Err(fail(format!("layer type {kind} is not supported, expected full_attention or sliding_attention"))),
        })
        .collect()
}

/// A config's object with readers that say which key is wrong. `null` is the same as missing.
#[derive(Clone, Copy)]
struct Config<'a>(&'a Map<String, Value>);

impl<'a> Config<'a> {
    fn value(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn text(self, key: &str) -> Option<&'a str> {
        self.value(key)?.as_str()
    }

    fn typed<T>(self, key: &str, what: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, Error> {
        let read = |value| read(value).ok_or_else(|| fail(format!("`{key}` is {value}, expected {what}")));
        self.value(key).map(read).transpose()
    }

    fn unsigned(self, key: &str) -> Result<Option<u64>, Error> {
        self.typed(key, "a whole number", Value::as_u64)
    }

    fn required(self, key: &str) -> Result<u64, Error> {
        self.unsigned(key)?.ok_or_else(|| fail(format!("`{key}` is missing")))
    }

    fn float(self, key: &str) -> Result<Option<f64>, Error> {
        self.typed(key, "a number", Value::as_f64)
    }

    fn flag(self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn object(self, key: &str) -> Result<Option<Self>, Error> {
        let read =
            |value: &'a Value| value.as_object().map(Config).ok_or_else(|| fail(format!("`{key}` is not an object")));
        self.value(key).map(read).transpose()
    }

    /// The newer layout: `rope_parameters`, by layer type where the architecture has several.
    fn rope_for(self, layer_type: &str) -> Result<Option<Rope>, Error> {
        let Some(parameters) = self.object("rope_parameters")? else { return Ok(None) };
        let parameters = parameters.object(layer_type)?.unwrap_or(parameters);
        let theta = match parameters.float("rope_theta")? {
            Some(theta) => theta,
            None => self.float("rope_theta")?.unwrap_or(10_000.0),
        };
        Ok(Some(Rope { theta, scaling: parameters.as_scaling()? }))
    }

    fn scaling(self, key: &str) -> Result<RopeScaling, Error> {
        self.object(key)?.map_or(Ok(RopeScaling::None), Config::as_scaling)
    }

    fn as_scaling(self) -> Result<RopeScaling, Error> {
        let need = |key: &str| self.float(key)?.ok_or_else(|| fail(format!("rope scaling has no `{key}`")));
        match self.text("rope_type").or_else(|| self.text("type")).unwrap_or("default") {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: need("factor")? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: need("factor")?,
                low_frequency_factor: need("low_freq_factor")?,
                high_frequency_factor: need("high_freq_factor")?,
                original_context: self.required("original_max_position_embeddings")?,
            }),
            other => Err(fail(format!("rope scaling `{other}` cannot be run yet, expected default, linear or llama3"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
        "num_attention_heads":4,"vocab_size":320,"max_position_embeddings":256"#;

    #[test]
    fn reads_the_oldest_layout() {
        let hyper = HyperParameters::from_config(format!("{LLAMA}}}").as_bytes()).expect("a config");
        assert_eq!((hyper.kv_heads, hyper.head_dim, hyper.tied), (4, 16, false));
        assert_eq!(hyper.rope, Rope { theta: 10_000.0, scaling: RopeScaling::None });
    }

    #[test]
    fn says_what_is_wrong() {
        for (extra, expect) in [
            (r#","num_attention_heads":0}"#, "number of attention heads is 0"),
            (r#","num_key_value_heads":3}"#, "cannot share 3"),
            (r#","head_dim":7}"#, "head size is 7"),
            (r#","head_dim":"x"}"#, "`head_dim` is \"x\""),
            (r#","num_hidden_layers":99999999999}"#, "number of layers"),
            (r#","hidden_act":"relu6"}"#, "relu6"),
            (r#","rope_scaling":{"type":"yarn","factor":2}}"#, "`yarn`"),
            (r#","rope_scaling":{"type":"linear"}}"#, "no `factor`"),
            (r#","rms_norm_eps":-1}"#, "positive"),
            ("", "EOF"),
        ] {
            let error = HyperParameters::from_config(format!("{LLAMA}{extra}").as_bytes()).expect_err(extra);
            assert!(error.to_string().contains(expect), "{error} should say {expect}");
        }
        let gemma = LLAMA.replace("llama", "gemma3_text").replace(r#"_layers":2"#, r#"_layers":4398046511104"#);
        let error = HyperParameters::from_config(format!("{gemma}}}").as_bytes()).expect_err("too many layers");
        assert!(error.to_string().contains("number of layers is 4398046511104"), "{error}");
        let other = HyperParameters::from_config(br#"{"model_type":"bert"}"#).expect_err("bert");
        assert!(other.to_string().contains("supported: llama, gemma3"), "{other}");
    }
}
