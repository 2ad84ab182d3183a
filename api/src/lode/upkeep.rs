//! Checking, repairing, measuring.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A line of an answer that takes its time: how far it is, and at the end what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}Step")]
pub struct Step<T> {
    /// What is being done; `success` in the last line.
    pub status: String,
    /// Bytes in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Bytes that are done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
    /// In the last line: the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<T>,
}

/// Body of `POST /api/lode/fsck`. Without a selection every blob is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FsckRequest {
    /// Read only some: those that were not read for the longest time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// Read only those that were not found good within so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Read only those of this model; goes with none of the above. Names and documents are looked at all the same: problems of others
    /// may be told, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Make the index anew first.
    pub rebuild: bool,
}

/// How many blobs are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sample {
    /// So many.
    Count(u64),
    /// So many of a hundred.
    Percent(u64),
}

/// Result of `POST /api/lode/fsck`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FsckReport {
    /// Models whose documents and blobs were looked at.
    pub models: u64,
    /// Blobs that were read and hashed.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The blob, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The layer's name, `config` or `manifest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// The models that it concerns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// What is wrong, for people.
    pub error: String,
}

/// Body of `POST /api/lode/repair`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RepairRequest {
    /// Name of the model; without it all models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Result of `POST /api/lode/repair`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepairReport {
    /// Blobs that were read and hashed.
    pub blobs: u64,
    /// Blobs that were fetched again.
    pub repaired: Vec<RepairedBlob>,
    /// What could not be repaired.
    pub failed: Vec<Problem>,
}

/// A blob that was fetched again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepairedBlob {
    /// The blob.
    pub digest: String,
    /// The layer's name, `config` or `manifest`.
    pub layer: String,
    /// The model it was fetched for.
    pub model: String,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Answer of `GET /api/lode/du`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DuResponse {
    /// The models, the largest first.
    pub models: Vec<DuModel>,
    /// The families of models, the largest first.
    #[serde(default)]
    pub families: Vec<DuFamily>,
    /// Blobs in the store.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of blobs that only earlier versions of models have.
    pub version_bytes: u64,
    /// Bytes of blobs that only manifests without a tag have, which a registry's clients sent.
    pub linked_bytes: u64,
    /// Bytes of blobs that none of those has: uploads of the last day, and what a collection would delete.
    pub unreferenced_bytes: u64,
    /// Bytes of ingests that are not committed.
    pub ingest_bytes: u64,
    /// Bytes of damaged blobs that were set aside.
    pub damaged_bytes: u64,
    /// Bytes free on the disk.
    pub free_bytes: u64,
}

/// What a model takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DuModel {
    /// Its name.
    pub name: String,
    /// Digest of its manifest.
    pub digest: String,
    /// Bytes of all its blobs, each counted once.
    pub bytes: u64,
    /// Bytes that no other name has: what its removal would free.
    pub unique_bytes: u64,
    /// Bytes that another name has too.
    pub shared_bytes: u64,
    /// Whether it is pinned.
    pub pinned: bool,
    /// When it was last loaded, or got its name where that was later; RFC 3339.
    #[serde(default)]
    pub used: String,
}

/// What the models of a family take together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DuFamily {
    /// The family; empty where models are of none, or blobs are of several.
    pub family: String,
    /// Bytes of all blobs that its models have and no other family's, each counted once.
    pub bytes: u64,
    /// Those of them that several names have.
    pub shared_bytes: u64,
    /// Names of its models.
    pub models: Vec<String>,
}
