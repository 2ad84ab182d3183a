//! Pull and push.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lode::JobPriority;

/// Body of `POST /api/pull`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PullRequest {
    /// Name of the model.
    pub model: String,
    /// The name, as older clients send it.
    pub name: String,
    /// Connect by HTTP without TLS.
    pub insecure: bool,
    /// Lode extension: report the progress of each blob in addition to the total.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub blobs: bool,
    /// Lode extension: limit of the job in bytes per second; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Lode extension: priority of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<JobPriority>,
    /// Whether to stream the progress. The default is true.
    pub stream: Option<bool>,
}

/// Body of `POST /api/push`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PushRequest {
    /// Name of the model. It is also the destination unless `destination` is set.
    pub model: String,
    /// The name, as older clients send it.
    pub name: String,
    /// Lode extension: destination, if it differs from the name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub destination: String,
    /// Lode extension: report the data that the push would send, and send nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Lode extension: report the progress of each blob in addition to the total.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub blobs: bool,
    /// Connect by HTTP without TLS.
    pub insecure: bool,
    /// Lode extension: limit of the job in bytes per second; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Lode extension: priority of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<JobPriority>,
    /// Whether to stream the progress. The default is true.
    pub stream: Option<bool>,
}

/// The action of a push for a layer: a line of a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PushLine {
    /// `present`, `mount` or `send`.
    pub status: String,
    /// Name of the layer, or `config`.
    pub name: String,
    /// Digest of the blob.
    pub digest: String,
    /// Size in bytes.
    pub total: u64,
}
