//! Garbage collection and pruning.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/gc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GcRequest {
    /// Only report the blobs that would be deleted.
    pub dry_run: bool,
}

/// Response of `POST /api/lode/gc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GcResponse {
    /// Number of unreferenced blobs that were deleted, or would be in a dry run.
    pub blobs: u64,
    /// Bytes of the deleted blobs.
    pub bytes: u64,
    /// Blobs that were left for a later collection; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_off: Option<PutOff>,
    /// Blobs that a lease keeps though no model refers to them; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased: Option<Leased>,
}

/// Blobs without a model that a lease keeps: uploads before their create, blobs of an interrupted
/// pull.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Leased {
    /// Number of blobs.
    pub blobs: u64,
    /// Bytes of the blobs.
    pub bytes: u64,
    /// Time when the last lease expires (RFC 3339).
    pub until: String,
}

/// Blobs that a collection did not delete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PutOff {
    /// Number of blobs without a known reference.
    pub blobs: u64,
    /// Bytes of the blobs.
    pub bytes: u64,
    /// Whether another request is adding or reading some of them.
    pub in_use: bool,
    /// Documents that could not be read and may refer to the blobs, and blobs that could not be
    /// removed.
    pub reasons: Vec<String>,
}

/// Response of `GET /api/lode/linked`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkedResponse {
    /// Manifests without a tag, sorted by repository.
    pub manifests: Vec<LinkedManifest>,
}

/// A manifest without a tag. A client of the registry pushed it, or a pull-through request fetched
/// it from another registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkedManifest {
    /// `repository@digest`; `lode rm` takes it.
    pub name: String,
    /// Digest of the manifest.
    pub digest: String,
    /// Time of the push, the pull-through or the last use (RFC 3339).
    pub used: String,
    /// Bytes of its blobs in the store, including blobs that are shared with other manifests.
    pub bytes: u64,
}

/// Body of `POST /api/lode/prune`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PruneRequest {
    /// Only report the data that would be removed.
    pub dry_run: bool,
    /// Also remove models and untagged manifests that were not used for this number of seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than: Option<u64>,
}

/// Response of `POST /api/lode/prune`: the removed data; in a dry run, the data that would be
/// removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PruneResponse {
    /// Models that were not used for longer than `older_than`.
    pub models: Vec<PruneModel>,
    /// Untagged manifests that were not used for longer than `older_than`.
    #[serde(default)]
    pub linked: Vec<PruneModel>,
    /// Models whose earlier versions are removed.
    pub versions: Vec<PruneVersions>,
    /// Number of abandoned ingests.
    pub ingests: u64,
    /// Bytes of those ingests.
    pub ingest_bytes: u64,
    /// Result of the collection that follows; absent in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collected: Option<GcResponse>,
}

/// A model or untagged manifest that was not used for longer than `older_than`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PruneModel {
    /// Name of the model or manifest.
    pub name: String,
    /// Time of the last use (RFC 3339).
    pub used: String,
    /// Bytes of its blobs. Blobs that are shared with other models are kept.
    pub bytes: u64,
}

/// Earlier versions of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PruneVersions {
    /// Name of the model.
    pub name: String,
    /// Digests of the versions.
    pub digests: Vec<String>,
}
