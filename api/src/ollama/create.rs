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
#[expect(clippy::struct_excessive_bools, reason = "fields of a document")]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct CreateRequest {
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    /// Former name of `model`.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Lode extension: a file or folder on the daemon's machine. Requires full access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Lode extension: a projector file (`mmproj`) on the daemon's machine, for the GGUF file in
    /// `path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projector: Option<String>,
    /// Lode extension: token of the file descriptors that the client passed over the daemon's
    /// socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handed: Option<String>,
    /// Lode extension: do not copy the tensors, but read them where they are, in the files of
    /// `path`.
    #[serde(skip_serializing_if = "is_false")]
    pub in_place: bool,
    /// Digests of uploaded blobs, by file name.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub adapters: BTreeMap<String, String>,
    /// Files of a draft model, like `files`.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub draft_files: BTreeMap<String, String>,
    /// Host that runs the model, if it is another host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_host: Option<String>,
    /// The type to quantize to: Ollama's names and further ones, see `docs/quantization.md`.
    #[serde(alias = "quantization", skip_serializing_if = "Option::is_none")]
    pub quantize: Option<String>,
    /// Lode extension, like the following fields up to `dry_run`: text of a policy file. Its rules
    /// come before the rules of the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Also encode tensors that are already quantized.
    #[serde(skip_serializing_if = "is_false")]
    pub requantize: bool,
    /// Compute all results, and compare them with the cached results of earlier computations.
    #[serde(skip_serializing_if = "is_false")]
    pub no_cache: bool,
    /// Write nothing. The response is a `QuantizePlan`. Requires `quantize`.
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

/// One license text or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum License {
    /// One text.
    One(String),
    /// Several texts.
    Several(Vec<String>),
}

impl License {
    /// Returns the texts.
    pub fn texts(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Several(texts) => texts,
        }
    }
}

/// A line of the response: a status, with progress if it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct Progress {
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Lode extension: name of the layer, if the line is about one blob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
    /// Lode extension, in the last line: parts of the request that were ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Progress {
    /// Creates the last line, with a warning for each unknown parameter.
    pub fn success(unknown: &[String]) -> Self {
        let warnings = unknown.iter().map(|name| format!("parameter {name} is ignored: the daemon does not know it"));
        Self { warnings: warnings.collect(), ..Self::status("success") }
    }

    /// Creates a line with a status only.
    pub fn status(status: impl Into<String>) -> Self {
        Self { status: status.into(), ..Self::default() }
    }
}
