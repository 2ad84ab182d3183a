//! Pulling and pushing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `POST /api/pull`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PullRequest {
    /// Name of the model.
    pub model: String,
    /// The same, from older clients.
    pub name: String,
    /// HTTP without TLS.
    pub insecure: bool,
    /// Tell of every blob how far it is, beside the whole. Lode's own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub blobs: bool,
    /// Whether progress is told; the default.
    pub stream: Option<bool>,
}

/// `POST /api/push`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PushRequest {
    /// Name of the model; also where it goes, unless `destination` says.
    pub model: String,
    /// The same, from older clients.
    pub name: String,
    /// Where it goes, where that is not its name. Lode's own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub destination: String,
    /// Tell what would be sent, and send nothing. Lode's own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Tell of every blob how far it is, beside the whole. Lode's own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub blobs: bool,
    /// HTTP without TLS.
    pub insecure: bool,
    /// Whether progress is told; the default.
    pub stream: Option<bool>,
}

/// What a push would do with a layer: a line of a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PushLine {
    /// `present`, `mount` or `send`.
    pub status: String,
    /// The layer's name, or `config`.
    pub name: String,
    /// The blob.
    pub digest: String,
    /// Its length in bytes.
    pub total: u64,
}
