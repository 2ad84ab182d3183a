//! Listing, showing, copying and deleting models.

use protocol::Message;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Options;
use super::answer::is_zero;
use super::null::or_default;
use crate::shapes;

/// Response of `GET /api/version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionResponse {
    /// Version of the Ollama API that Lode serves. Clients refuse to work with a version that is
    /// too old for them.
    pub version: String,
    /// Lode extension: version of the daemon. Absent in Ollama's response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lode_version: Option<String>,
}

/// Version of the Ollama API that Lode serves.
const OLLAMA_VERSION: &str = "0.34.0";

impl VersionResponse {
    /// Creates the response of a daemon of this version.
    pub fn new(lode_version: &str) -> Self {
        Self { version: OLLAMA_VERSION.to_owned(), lode_version: Some(lode_version.to_owned()) }
    }

    /// Returns the value of the `Server` header: the versions of the daemon and of the Ollama API.
    pub fn products(&self) -> String {
        let own = self.lode_version.iter().map(|version| format!("Lode/{version}"));
        own.chain([format!("Ollama/{}", self.version)]).collect::<Vec<_>>().join(" ")
    }

    /// Returns the version of the program that responded, for display.
    pub fn program(&self) -> String {
        match &self.lode_version {
            Some(version) => version.clone(),
            None => format!("{} of Ollama", self.version),
        }
    }
}

/// Summary of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct Details {
    pub parent_model: String,
    pub format: String,
    pub family: String,
    pub families: Vec<String>,
    pub parameter_size: String,
    pub quantization_level: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub context_length: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub embedding_length: u64,
}

/// A model in `GET /api/tags`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct ModelEntry {
    pub name: String,
    pub model: String,
    pub modified_at: String,
    pub size: u64,
    pub digest: String,
    pub details: Details,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Lode extension: true if the model has no chat template. It continues texts and does not
    /// distinguish the messages of a conversation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_completes: bool,
    /// Lode extension: whether the model is protected from removal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
}

/// Response of `GET /api/tags`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct TagsResponse {
    pub models: Vec<ModelEntry>,
    /// The value of `after` for the next page, if a limit was given and more models follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A model in `GET /api/ps`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct PsEntry {
    pub name: String,
    pub model: String,
    pub size: u64,
    pub digest: String,
    pub details: Details,
    pub expires_at: String,
    pub size_vram: u64,
    pub context_length: u64,
    /// Lode extension: process id of the runner.
    #[serde(default)]
    pub pid: u32,
    /// Lode extension: device that computes the model: `cpu`, `cuda:0`, `metal`.
    #[serde(default)]
    pub device: String,
    /// Lode extension: description of the device, or the reason why no other is used.
    #[serde(default)]
    pub device_note: String,
}

/// Response of `GET /api/ps`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct PsResponse {
    pub models: Vec<PsEntry>,
}

/// Body of `POST /api/show`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct ShowRequest {
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    /// Former name of `model`.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub verbose: bool,
    /// System prompt to show in place of the model's.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub system: String,
    /// Parameters that override the model's in the Modelfile.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Map::is_empty")]
    #[schemars(with = "Options")]
    pub options: Map<String, Value>,
}

/// A tensor in a verbose response of `POST /api/show`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct TensorEntry {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub shape: Vec<u64>,
    /// Lode extension: size in bytes.
    #[serde(default)]
    pub size: u64,
    /// Lode extension: digest of the blob with the tensor.
    #[serde(default)]
    pub digest: String,
}

/// Response of `POST /api/show`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct ShowResponse {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub license: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub modelfile: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parameters: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub renderer: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parser: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system: String,
    pub details: Details,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "shapes::messages")]
    pub messages: Vec<Message>,
    pub model_info: Map<String, Value>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub projector_info: Map<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<TensorEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Lode extension: true if the model has no chat template. It continues texts and does not
    /// distinguish the messages of a conversation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_completes: bool,
    /// Lode extension: why this build cannot run the model; missing if it can.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cannot_run: String,
    pub modified_at: String,
    /// Lode extension: sampling options that the maker of the model recommends. They apply if
    /// neither the request nor the model's parameters set them.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub sampling: Map<String, Value>,
    /// Lode extension: the document that `sampling` comes from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sampling_source: String,
}

/// Body of `POST /api/copy`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct CopyRequest {
    #[serde(deserialize_with = "or_default")]
    pub source: String,
    #[serde(deserialize_with = "or_default")]
    pub destination: String,
}

/// Body of `DELETE /api/delete`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are Ollama's")]
pub struct DeleteRequest {
    #[serde(deserialize_with = "or_default")]
    pub model: String,
    /// Former name of `model`.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
}
