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
    /// Alias of `content`.
    pub text: Option<String>,
    /// Whether to add the special tokens that the model expects around a text, such as BOS.
    #[serde(deserialize_with = "or_default")]
    pub add_special: bool,
    /// Whether to parse special tokens in the text; true by default. If false, they are plain text.
    pub parse_special: Option<bool>,
    /// How long the model stays loaded.
    pub keep_alive: Option<KeepAliveSpec>,
    /// As in other requests; only `num_ctx` has an effect.
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
}

/// Response of `POST /api/tokenize`. Durations are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TokenizeResponse {
    /// Name of the model, as in the request.
    pub model: String,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Time since the request arrived.
    pub total_duration: u64,
    /// The part of it until the model was loaded.
    pub load_duration: u64,
}

/// Body of `POST /api/detokenize`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DetokenizeRequest {
    /// Name of the model.
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    /// Token ids.
    #[serde(deserialize_with = "or_default")]
    pub tokens: Vec<u32>,
    /// How long the model stays loaded.
    pub keep_alive: Option<KeepAliveSpec>,
    /// As in other requests; only `num_ctx` has an effect.
    #[serde(deserialize_with = "or_default")]
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
}

/// Response of `POST /api/detokenize`. Durations are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DetokenizeResponse {
    /// Name of the model, as in the request.
    pub model: String,
    /// The text.
    pub content: String,
    /// Time since the request arrived.
    pub total_duration: u64,
    /// The part of it until the model was loaded.
    pub load_duration: u64,
}
