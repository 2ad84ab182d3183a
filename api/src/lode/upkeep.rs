//! Checks, repair and disk usage.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A line in the response of a long operation: its progress, and in the last line its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}Step")]
pub struct Step<T> {
    /// The current step; `success` in the last line.
    pub status: String,
    /// Total bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Bytes processed so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
    /// The result, in the last line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<T>,
}

/// Body of `POST /api/lode/fsck`. Without a selection, all blobs are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FsckRequest {
    /// Read only some blobs: the ones that were checked least recently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// Read only blobs that were not found intact within this number of seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Read only the blobs of this model. It excludes `sample` and `since`. Names and documents of
    /// all models are still checked, so the report may include problems of other models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Rebuild the index first.
    pub rebuild: bool,
}

/// Number of blobs to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sample {
    /// This number of blobs.
    Count(u64),
    /// This percentage of the blobs.
    Percent(u64),
}

/// Result of `POST /api/lode/fsck`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FsckReport {
    /// Number of models whose documents and blobs were checked.
    pub models: u64,
    /// Number of blobs that were read and hashed.
    pub blobs: u64,
    /// Bytes of those blobs.
    pub bytes: u64,
    /// Problems that were found.
    pub problems: Vec<Problem>,
}

/// A problem in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Digest of the blob, if the problem is about a blob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The layer's name, `config` or `manifest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// Models that the problem affects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Human-readable description.
    pub error: String,
}

/// Body of `POST /api/lode/repair`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RepairRequest {
    /// Name of the model. Without it, all models are repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Result of `POST /api/lode/repair`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepairReport {
    /// Number of blobs that were read and hashed.
    pub blobs: u64,
    /// Blobs that were fetched again.
    pub repaired: Vec<RepairedBlob>,
    /// Problems that could not be repaired.
    pub failed: Vec<Problem>,
}

/// Body of `POST /api/lode/move`: `models` or `unused`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// Folder of the root to move to.
    pub to: String,
    /// Move these models.
    #[serde(default)]
    pub models: Vec<String>,
    /// Move all models that were not used for this number of seconds. Pinned and loaded models
    /// stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused: Option<u64>,
    /// Only report the models that would move.
    #[serde(default)]
    pub dry_run: bool,
    /// Make a store in the folder if it has none.
    #[serde(default)]
    pub create: bool,
}

/// Result of `POST /api/lode/move`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MoveReport {
    /// The models that moved, or would move.
    pub models: Vec<RelocatedModel>,
    /// Number of blobs that were copied; the root had the others. 0 in a dry run.
    pub blobs: u64,
    /// Bytes of these blobs.
    pub bytes: u64,
    /// Why further models stay.
    pub failed: Vec<String>,
}

/// A model that moves to a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RelocatedModel {
    /// Name of the model.
    pub name: String,
    /// Time of its last use (RFC 3339).
    pub used: String,
    /// Bytes of its blobs.
    pub bytes: u64,
}

/// Body of `POST /api/lode/own`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnRequest {
    /// Name of the model.
    pub model: String,
}

/// Result of `POST /api/lode/own`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnReport {
    /// Number of blobs that were copied into the store.
    pub blobs: u64,
    /// Bytes of these blobs.
    pub bytes: u64,
}

/// A blob that was fetched again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepairedBlob {
    /// Digest of the blob.
    pub digest: String,
    /// The layer's name, `config` or `manifest`.
    pub layer: String,
    /// The model that the blob was fetched for.
    pub model: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// Response of `GET /api/lode/du`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DuResponse {
    /// The models, largest first.
    pub models: Vec<DuModel>,
    /// The model families, largest first.
    #[serde(default)]
    pub families: Vec<DuFamily>,
    /// Number of blobs in the store.
    pub blobs: u64,
    /// Bytes of all blobs.
    pub bytes: u64,
    /// Bytes of blobs that only earlier versions of models refer to.
    pub version_bytes: u64,
    /// Bytes of blobs that only untagged manifests refer to, which clients of the registry pushed.
    pub linked_bytes: u64,
    /// Bytes of all other blobs: uploads of the last day, and blobs that a collection would delete.
    pub unreferenced_bytes: u64,
    /// Bytes of ingests that are not committed.
    pub ingest_bytes: u64,
    /// Bytes of damaged blobs that were moved aside.
    pub damaged_bytes: u64,
    /// Bytes of blobs that are only in the tier.
    #[serde(default)]
    pub tier_bytes: u64,
    /// Bytes of blobs that lie in other files: tensors of adopted models.
    #[serde(default)]
    pub adopted_bytes: u64,
    /// Bytes of the models' blobs that are only in roots (`LODE_ROOTS`).
    #[serde(default)]
    pub root_bytes: u64,
    /// Free bytes on the disk.
    pub free_bytes: u64,
}

/// Disk usage of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DuModel {
    /// Name of the model.
    pub name: String,
    /// Digest of its manifest.
    pub digest: String,
    /// Bytes of all its blobs, each counted once.
    pub bytes: u64,
    /// Bytes of blobs that no other model has. Removing the model frees them.
    pub unique_bytes: u64,
    /// Bytes of blobs that other models have too.
    pub shared_bytes: u64,
    /// Bytes of its blobs that lie in other files. They are not part of the other sizes.
    #[serde(default)]
    pub adopted_bytes: u64,
    /// Whether the model is pinned.
    pub pinned: bool,
    /// Time when the model was last loaded or was given its name, the later of both (RFC 3339).
    #[serde(default)]
    pub used: String,
}

/// Disk usage of a model family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DuFamily {
    /// Name of the family. Empty for models without a family and for blobs of several families.
    pub family: String,
    /// Bytes of the blobs that only models of this family have, each counted once.
    pub bytes: u64,
    /// Bytes of those blobs that several models have.
    pub shared_bytes: u64,
    /// Names of the models.
    pub models: Vec<String>,
}
