//! `options` of a request and parameters of a model, which share their names.

use protocol::Sampling;
use schemars::JsonSchema;
use serde_json::{Map, Value};

use crate::{Refusal, nearest, shapes};

/// Options that are set. For the rest, the model's parameters apply, then the defaults.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct Options {
    /// Context length in tokens.
    pub num_ctx: Option<u64>,
    /// Number of layers on GPUs, counted from the output layer, which is one of them. If negative,
    /// as many as fit.
    pub num_gpu: Option<i64>,
    /// Index of the only GPU to use; negative for any.
    pub main_gpu: Option<i64>,
    /// Maximum number of tokens to generate; negative for no limit.
    pub num_predict: Option<i64>,
    /// Number of tokens at the start of a prompt that are kept when it is cut.
    pub num_keep: Option<u64>,
    /// Strings that end the generation.
    #[schemars(schema_with = "shapes::texts")]
    pub stop: Option<Vec<String>>,
    /// Random seed, which makes a generation repeatable; negative for none.
    pub seed: Option<i64>,
    /// Sampling temperature; 0 always takes the most likely token.
    pub temperature: Option<f32>,
    /// Sample from this number of most likely tokens; 0 or less for all.
    pub top_k: Option<i64>,
    /// Sample from the most likely tokens whose total probability reaches this value.
    pub top_p: Option<f32>,
    /// Sample from tokens whose probability is at least this fraction of the most likely token's.
    pub min_p: Option<f32>,
    /// Sample from the most typical tokens whose total probability reaches this value.
    pub typical_p: Option<f32>,
    /// Number of recent tokens that the penalties consider; -1 for the whole context.
    pub repeat_last_n: Option<i64>,
    /// Penalty for tokens that already occurred, as a divisor; 1 for none.
    pub repeat_penalty: Option<f32>,
    /// Penalty for tokens that already occurred, subtracted once.
    pub presence_penalty: Option<f32>,
    /// Penalty for tokens that already occurred, subtracted for each occurrence.
    pub frequency_penalty: Option<f32>,
    /// End a response whose last tokens, this many, repeat the same short sequence of up to 64
    /// tokens; 0 for never.
    pub repeat_limit: Option<u64>,
}

/// The names that [`Options::set`] accepts.
const NAMES: [&str; 17] = [
    "num_ctx",
    "num_gpu",
    "main_gpu",
    "num_predict",
    "num_keep",
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "repeat_limit",
    "stop",
];

/// Options of other servers that have no effect here. They are accepted so that existing models and
/// clients work.
const IGNORED: [(&str, Kind); 18] = [
    ("num_batch", Kind::Integer),
    ("use_mmap", Kind::Flag),
    ("num_thread", Kind::Integer),
    ("draft_num_predict", Kind::Integer),
    ("mirostat", Kind::Integer),
    ("mirostat_tau", Kind::Float),
    ("mirostat_eta", Kind::Float),
    ("penalize_newline", Kind::Flag),
    ("low_vram", Kind::Flag),
    ("f16_kv", Kind::Flag),
    ("logits_all", Kind::Flag),
    ("vocab_only", Kind::Flag),
    ("use_mlock", Kind::Flag),
    ("embedding_only", Kind::Flag),
    ("use_imagegen_runner", Kind::Flag),
    ("numa", Kind::Flag),
    ("tfs_z", Kind::Float),
    ("num_gqa", Kind::Integer),
];

/// The type of an option's value.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Integer,
    Float,
    Flag,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Float => "float32",
            Self::Flag => "boolean",
        }
    }

    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Integer => value.as_f64().is_some_and(|n| n.fract() == 0.0),
            Self::Float => value.is_number(),
            Self::Flag => value.is_boolean(),
        }
    }
}

impl Options {
    /// Parses options. The second part of the result lists unknown names.
    ///
    /// # Errors
    /// Names the option with a value of the wrong type.
    pub fn read(map: &Map<String, Value>) -> Result<(Self, Vec<String>), String> {
        let mut options = Self::default();
        let mut unknown = Vec::new();
        for (name, value) in map.iter().filter(|(_, value)| !value.is_null()) {
            if options.set(name, value)? {
                continue;
            }
            match IGNORED.iter().find(|(ignored, _)| ignored == name) {
                Some((_, kind)) if !kind.fits(value) => {
                    return Err(format!("option \"{name}\" must be of type {}, it is {value}", kind.name()));
                }
                Some(_) => {}
                None => unknown.push(name.clone()),
            }
        }
        Ok((options, unknown))
    }

    /// Parses the field `options` of requests in the other APIs, like [`read`](Self::read).
    pub(crate) fn of_field(options: Option<&Map<String, Value>>) -> Result<(Self, Vec<String>), Refusal> {
        let read = options.map(|options| Self::read(options).map_err(|error| Refusal::new("options", error)));
        read.unwrap_or_else(|| Ok(Default::default()))
    }

    /// Returns true if an option of that name exists.
    pub fn knows(name: &str) -> bool {
        Self::names().any(|known| known == name)
    }

    /// Returns the option that is most similar to a mistyped name.
    pub fn nearest(name: &str) -> Option<&'static str> {
        nearest(name, Self::names())
    }

    fn names() -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().chain(IGNORED.into_iter().map(|(name, _)| name))
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<bool, String> {
        let wrong = |what: &str| format!("option \"{name}\" must be of type {what}, it is {value}");
        // A number too large for f32 would become infinite, which the runner protocol cannot
        // express.
        let float = || value.as_f64().map(|n| n as f32).filter(|n| n.is_finite()).ok_or_else(|| wrong("float32"));
        // Clients also write integers as floats.
        let whole = |n: f64| (n.fract() == 0.0 && n.abs() < 9e15).then_some(n as i64);
        let integer = || value.as_i64().or_else(|| value.as_f64().and_then(whole)).ok_or_else(|| wrong("integer"));
        let count = || u64::try_from(integer()?).map_err(|_| wrong("integer, 0 or more"));
        match name {
            // 0 means no requested context length: the configured default applies.
            "num_ctx" => self.num_ctx = Some(count()?).filter(|tokens| *tokens > 0),
            "num_gpu" => self.num_gpu = Some(integer()?),
            "main_gpu" => self.main_gpu = Some(integer()?),
            "num_predict" => self.num_predict = Some(integer()?),
            "num_keep" => self.num_keep = Some(count()?),
            "seed" => self.seed = Some(integer()?),
            "temperature" => self.temperature = Some(float()?),
            "top_k" => self.top_k = Some(integer()?),
            "top_p" => self.top_p = Some(float()?),
            "min_p" => self.min_p = Some(float()?),
            "typical_p" => self.typical_p = Some(float()?),
            "repeat_last_n" => self.repeat_last_n = Some(integer()?),
            "repeat_penalty" => self.repeat_penalty = Some(float()?),
            "presence_penalty" => self.presence_penalty = Some(float()?),
            "frequency_penalty" => self.frequency_penalty = Some(float()?),
            "repeat_limit" => self.repeat_limit = Some(count()?),
            "stop" => self.stop = Some(strings(value).ok_or_else(|| wrong("list of strings"))?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns these options, with missing ones from `under`.
    #[must_use]
    pub fn over(self, under: Self) -> Self {
        Self {
            num_ctx: self.num_ctx.or(under.num_ctx),
            num_gpu: self.num_gpu.or(under.num_gpu),
            main_gpu: self.main_gpu.or(under.main_gpu),
            num_predict: self.num_predict.or(under.num_predict),
            num_keep: self.num_keep.or(under.num_keep),
            stop: self.stop.or(under.stop),
            seed: self.seed.or(under.seed),
            temperature: self.temperature.or(under.temperature),
            top_k: self.top_k.or(under.top_k),
            top_p: self.top_p.or(under.top_p),
            min_p: self.min_p.or(under.min_p),
            typical_p: self.typical_p.or(under.typical_p),
            repeat_last_n: self.repeat_last_n.or(under.repeat_last_n),
            repeat_penalty: self.repeat_penalty.or(under.repeat_penalty),
            presence_penalty: self.presence_penalty.or(under.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(under.frequency_penalty),
            repeat_limit: self.repeat_limit.or(under.repeat_limit),
        }
    }

    /// Returns the sampling parameters for a context of this many tokens.
    pub fn sampling(&self, context: u64) -> Sampling {
        let default = Sampling::default();
        let clamp = |n: i64| u32::try_from(n).unwrap_or(if n < 0 { 0 } else { u32::MAX });
        let whole_context = u32::try_from(context).unwrap_or(u32::MAX);
        Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.map_or(default.top_k, clamp),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            typical_p: self.typical_p.unwrap_or(default.typical_p),
            repeat_last_n: match self.repeat_last_n {
                None => default.repeat_last_n,
                Some(n) if n < 0 => whole_context,
                Some(n) => clamp(n),
            },
            repeat_penalty: self.repeat_penalty.unwrap_or(default.repeat_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            seed: self.seed.and_then(|seed| u64::try_from(seed).ok()),
        }
    }

    /// Returns the maximum number of tokens to generate; `None` for no limit.
    pub fn max_tokens(&self) -> Option<u64> {
        self.num_predict.and_then(|n| u64::try_from(n).ok())
    }
}

fn strings(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(list) => list.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Result<(Options, Vec<String>), String> {
        Options::read(value.as_object().expect("an object"))
    }

    #[test]
    fn every_name_is_an_option() {
        for name in NAMES {
            let (_, unknown) = Options::read(&Map::from_iter([(name.to_owned(), Value::from(1))])).unwrap_or_default();
            assert!(unknown.is_empty() && Options::knows(name), "{name}");
        }
        assert_eq!(Options::nearest("temprature"), Some("temperature"));
        assert_eq!(Options::nearest("colour"), None);
    }

    #[test]
    fn types_are_checked_and_unknown_names_reported() {
        let (options, unknown) =
            read(&json!({"temperature": 0, "num_ctx": 64.0, "stop": "x", "seed": -1, "warp": 9, "num_gpu": 1}))
                .expect("options");
        assert_eq!((options.temperature, options.num_ctx), (Some(0.0), Some(64)));
        assert_eq!((options.num_gpu, &options.stop), (Some(1), &Some(vec!["x".to_owned()])));
        assert_eq!(options.sampling(64).seed, None);
        assert_eq!(unknown, ["warp"]);
        for bad in [
            json!({"temperature": "hot"}),
            json!({"min_p": -3.3e249}),
            json!({"num_ctx": -1}),
            json!({"top_k": 1.5}),
            json!({"stop": [1]}),
            json!({"num_gpu": "all"}),
            json!({"use_mmap": 1}),
            json!({"mirostat_tau": true}),
        ] {
            assert!(read(&bad).expect_err("wrong type").starts_with("option \""), "{bad}");
        }
    }

    #[test]
    fn the_request_comes_before_the_model() {
        let (request, _) = read(&json!({"temperature": 0, "stop": ["a"]})).expect("options");
        let (model, _) = read(&json!({"temperature": 1, "num_ctx": 64, "stop": ["b"]})).expect("options");
        let both = request.over(model);
        assert_eq!((both.temperature, both.num_ctx, both.stop), (Some(0.0), Some(64), Some(vec!["a".to_owned()])));
    }
}
