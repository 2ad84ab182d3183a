//! `/api/create`.

use std::collections::BTreeMap;

use protocol::Message;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Options;
use super::null::or_default;
use crate::shapes;

/// Body of `POST /api/create`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct CreateRequest {
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    /// The old name of `model`.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Lode's own: a file or folder on the daemon's machine, imported in place. For who may do everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Lode's own: the token of files that were handed over at the daemon's socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handed: Option<String>,
    /// File names with the digests of uploaded blobs.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub adapters: BTreeMap<String, String>,
    /// As `files`, for a draft model.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub draft_files: BTreeMap<String, String>,
    /// Where the model runs, where that is elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_host: Option<String>,
    /// The type to quantize to. Ollama's names, and more: see `docs/quantization.md`.
    #[serde(alias = "quantization", skip_serializing_if = "Option::is_none")]
    pub quantize: Option<String>,
    /// Lode's own, as the fields down to `dry_run`: the text of a policy file, whose rules come before those of the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Also encode what is quantized already.
    #[serde(skip_serializing_if = "is_false")]
    pub requantize: bool,
    /// Compute everything, and compare it with what is remembered of earlier computations.
    #[serde(skip_serializing_if = "is_false")]
    pub no_cache: bool,
    /// Write nothing; the answer is a `QuantizePlan`. Needs `quantize`.
    #[serde(skip_serializing_if = "is_false")]
    pub dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renderer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parser: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub license: Option<License>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Map::is_empty")]
    #[schemars(with = "Options")]
    pub parameters: Map<String, Value>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "shapes::messages")]
    pub messages: Vec<Message>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// One licence or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum License {
    /// One text.
    One(String),
    /// Several texts.
    Several(Vec<String>),
}

impl License {
    /// The texts.
    pub fn texts(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Several(texts) => texts,
        }
    }
}

/// A line of the answer: a status, with how far it is where that can be told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct Progress {
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Lode's own: the layer that the line is about, where blobs are told one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
    /// Lode's own, in the last line: what of the request was ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Progress {
    /// The last line, where these parameters are not known.
    pub fn success(unknown: &[String]) -> Self {
        let warnings = unknown.iter().map(|name| format!("parameter {name} is ignored: the daemon does not know it"));
        Self { warnings: warnings.collect(), ..Self::status("success") }
    }

    /// A status alone.
    pub fn status(status: impl Into<String>) -> Self {
        Self { status: status.into(), ..Self::default() }
    }
}
