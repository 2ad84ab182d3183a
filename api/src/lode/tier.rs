//! Documents of `/api/lode/tier…`: the tier of the store, to which rarely used blobs go.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Response of `GET /api/lode/tier`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierResponse {
    /// Where the tier is: a URL or a folder.
    pub location: String,
    /// Blobs of models move that were not used for this number of seconds; `null`: none.
    pub after: Option<u64>,
    /// Maximum bytes of all blobs on the disk; `null`: no maximum.
    pub disk: Option<u64>,
    /// Bytes of all blobs on the disk.
    pub disk_bytes: u64,
    /// Number of blobs that the tier has.
    pub tier_blobs: u64,
    /// Bytes of these blobs.
    pub tier_bytes: u64,
    /// Number of blobs that are only in the tier.
    pub moved_blobs: u64,
    /// Bytes of these blobs.
    pub moved_bytes: u64,
    /// Why the tier cannot be used; `null` if it answers.
    pub problem: Option<String>,
}

/// Body of `POST /api/lode/tier/move`: at least one of `after` and `models`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TierMoveRequest {
    /// Move blobs of models that were not used for this number of seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Move blobs of these models, however recently they were used. Blobs that other models have,
    /// too, stay.
    pub models: Vec<String>,
    /// Only report the blobs that would move.
    pub dry_run: bool,
}

/// The last line of the response of `POST /api/lode/tier/move`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierMoveReport {
    /// Models with blobs to move.
    pub models: Vec<TierModel>,
    /// Number of blobs to move.
    pub planned_blobs: u64,
    /// Bytes of these blobs.
    pub planned_bytes: u64,
    /// Number of blobs that have left the disk; 0 in a dry run.
    pub blobs: u64,
    /// Bytes of these blobs.
    pub bytes: u64,
    /// Bytes that were sent. Blobs that came back earlier are not sent again.
    pub sent: u64,
    /// Number of blobs that stay because they are being read or added.
    pub in_use: u64,
    /// Why further blobs stay.
    pub failed: Vec<String>,
}

/// A model with blobs to move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierModel {
    /// Name of the model.
    pub name: String,
    /// Time of the last use (RFC 3339); `null` for an earlier version without one.
    pub used: Option<String>,
    /// Bytes of its blobs that move.
    pub bytes: u64,
}

/// Body of `POST /api/lode/tier/recall`: either `models` or `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TierRecallRequest {
    /// Copy the blobs of these models back.
    pub models: Vec<String>,
    /// Copy all blobs back, for instance to stop using the tier.
    pub all: bool,
}

/// The last line of the response of `POST /api/lode/tier/recall`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierRecallReport {
    /// Bytes that were copied back.
    pub bytes: u64,
}
