//! `/api/tokenize` and `/api/detokenize`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::null::or_default;
use super::{KeepAliveSpec, Options};

/// Body of `POST /api/tokenize`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TokenizeRequest {
    /// Name of the model.
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    /// The text.
    pub content: Option<String>,
    /// Another name of `content`.
    pub text: Option<String>,
    /// Add the tokens that the model wants around a text, such as BOS.
    #[serde(deserialize_with = "or_default")]
    pub add_special: bool,
    /// Read special tokens in the text as such; the default. Else they are text.
    pub parse_special: Option<bool>,
    /// How long the model stays loaded.
    pub keep_alive: Option<KeepAliveSpec>,
    /// As in other requests; only `num_ctx` matters.
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
}

/// Answer of `POST /api/tokenize`; durations in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TokenizeResponse {
    /// As in the request.
    pub model: String,
    /// The ids.
    pub tokens: Vec<u32>,
    /// From the request's arrival.
    pub total_duration: u64,
    /// Of that, until the model was there.
    pub load_duration: u64,
}

/// Body of `POST /api/detokenize`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DetokenizeRequest {
    /// Name of the model.
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    /// The ids.
    #[serde(deserialize_with = "or_default")]
    pub tokens: Vec<u32>,
    /// How long the model stays loaded.
    pub keep_alive: Option<KeepAliveSpec>,
    /// As in other requests; only `num_ctx` matters.
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
}

/// Answer of `POST /api/detokenize`; durations in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DetokenizeResponse {
    /// As in the request.
    pub model: String,
    /// The text.
    pub content: String,
    /// From the request's arrival.
    pub total_duration: u64,
    /// Of that, until the model was there.
    pub load_duration: u64,
}
