//! Sampling and stop fields that chat and completion requests share.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ollama::{KeepAliveSpec, Options};
use crate::{GenerationOptions, Refusal};

/// Maximum number of choices for a prompt.
const MOST_CHOICES: u32 = 128;

/// One string or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(super) enum Strings {
    /// One string.
    One(String),
    /// Several strings.
    Several(Vec<String>),
}

/// Sampling options.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sampling {
    temperature: Option<f64>,
    top_p: Option<f64>,
    seed: Option<i64>,
    stop: Option<Strings>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    logit_bias: Option<BTreeMap<String, f64>>,
    n: Option<u32>,
    /// Lode extension: Ollama's options. The fields above take precedence over them.
    #[schemars(with = "Option<Options>")]
    options: Option<Map<String, Value>>,
    /// Lode extension: how long the model stays loaded, as in Ollama's API.
    keep_alive: Option<KeepAliveSpec>,
}

impl Sampling {
    /// Returns the number of choices for each prompt.
    pub(super) fn choices(&self) -> Result<u32, Refusal> {
        let n = self.n.unwrap_or(1);
        if (1..=MOST_CHOICES).contains(&n) {
            return Ok(n);
        }
        Err(Refusal::new("n", format!("n is {n}, expected 1 to {MOST_CHOICES}")))
    }

    /// Converts these fields to generation options. A negative `max_tokens` means no limit.
    pub(super) fn demand(&self, max_tokens: Option<i64>) -> Result<GenerationOptions, Refusal> {
        let (given, unknown_options) = Options::of_field(self.options.as_ref())?;
        let options = Options {
            temperature: within("temperature", self.temperature, 0.0, 2.0)?,
            top_p: within("top_p", self.top_p, 0.0, 1.0)?,
            frequency_penalty: within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?,
            presence_penalty: within("presence_penalty", self.presence_penalty, -2.0, 2.0)?,
            seed: self.seed,
            stop: self.stop.clone().map(texts),
            num_predict: max_tokens,
            ..Options::default()
        };
        let logit_bias = self.logit_bias.iter().flatten().map(bias).collect::<Result<_, _>>()?;
        let options = options.over(given);
        // Coding agents compact a conversation that is refused. If a client sets the context
        // length, its prompt is truncated to that length instead.
        let refuse_long_prompts = options.num_ctx.is_none();
        Ok(GenerationOptions {
            options,
            unknown_options,
            refuse_long_prompts,
            logit_bias,
            keep_alive: self.keep_alive,
            ..GenerationOptions::of_openai()
        })
    }
}

/// Returns the stop strings without empty ones. An empty string would end every response at once;
/// other servers ignore it too.
fn texts(strings: Strings) -> Vec<String> {
    let mut texts = match strings {
        Strings::One(text) => vec![text],
        Strings::Several(texts) => texts,
    };
    texts.retain(|text| !text.is_empty());
    texts
}

/// Checks that a number is in a range.
pub(super) fn within(name: &str, value: Option<f64>, least: f64, most: f64) -> Result<Option<f32>, Refusal> {
    match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(Refusal::new(name, format!("{name} is {value}, expected {least} to {most}")))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

fn bias((token, bias): (&String, &f64)) -> Result<(u32, f32), Refusal> {
    let token: u32 = token
        .parse()
        .map_err(|_| Refusal::new("logit_bias", format!("`{token}` is not a token; expected the number of one")))?;
    let bias = within("logit_bias", Some(*bias), -100.0, 100.0)?;
    Ok((token, bias.unwrap_or_default()))
}

/// Checks the number of most likely tokens to report.
pub(super) fn top_logprobs(name: &str, count: u32, most: u32) -> Result<u32, Refusal> {
    if count <= most {
        return Ok(count);
    }
    Err(Refusal::new(name, format!("{name} is {count}, expected 0 to {most}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn demand(fields: Value) -> Result<GenerationOptions, Refusal> {
        serde_json::from_value::<Sampling>(fields).expect("fields").demand(Some(9))
    }

    #[test]
    fn fields_become_options() {
        let demand = demand(json!({
            "temperature": 0.5, "top_p": 0.25, "seed": 3, "stop": "x", "frequency_penalty": 1, "presence_penalty": -1,
            "logit_bias": {"7": -100, "11": 1.5}, "options": {"num_ctx": 64, "temperature": 0.1}, "keep_alive": "5m",
        }))
        .expect("a demand");
        let expected = Options {
            temperature: Some(0.5),
            top_p: Some(0.25),
            seed: Some(3),
            stop: Some(vec!["x".to_owned()]),
            frequency_penalty: Some(1.0),
            presence_penalty: Some(-1.0),
            num_ctx: Some(64),
            num_predict: Some(9),
            ..Options::default()
        };
        assert_eq!(demand.options, expected);
        // Keys of a JSON object have no order; these are sorted as text.
        assert_eq!(demand.logit_bias, [(11, 1.5), (7, -100.0)]);
        assert!(demand.keep_alive.is_some());
    }

    #[test]
    fn what_is_not_said_is_left_open() {
        let demand = demand(json!({"temperature": null, "stop": ["", "y"]})).expect("a demand");
        let stop = Some(vec!["y".to_owned()]);
        assert_eq!(demand.options, Options { stop, num_predict: Some(9), ..Options::default() });
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_name() {
        for (fields, param) in [
            (json!({"temperature": -0.1}), "temperature"),
            (json!({"temperature": 1e300}), "temperature"),
            (json!({"top_p": 1.1}), "top_p"),
            (json!({"frequency_penalty": 3}), "frequency_penalty"),
            (json!({"logit_bias": {"the": 1}}), "logit_bias"),
            (json!({"logit_bias": {"1": 101}}), "logit_bias"),
            (json!({"options": {"num_ctx": "many"}}), "options"),
        ] {
            assert_eq!(demand(fields.clone()).expect_err("out of range").param, param, "{fields}");
        }
        let choices = |n: u32| serde_json::from_value::<Sampling>(json!({"n": n})).expect("fields").choices();
        assert_eq!(choices(128), Ok(128));
        assert!(choices(0).is_err() && choices(129).is_err());
    }
}
