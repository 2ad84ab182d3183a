//! What is deleted: collection and pruning.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/gc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GcRequest {
    /// Only tell what would be deleted.
    pub dry_run: bool,
}

/// Answer of `POST /api/lode/gc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GcResponse {
    /// Blobs that nothing refers to, and that were deleted.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What was left for a later collection; missing where there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_off: Option<PutOff>,
    /// What is kept for a while though no model refers to it; missing where there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased: Option<Leased>,
}

/// Blobs that wait for the request that needs them: uploads, and what a pull that broke off has fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Leased {
    /// How many.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the last of them may be deleted (RFC 3339).
    pub until: String,
}

/// What a collection left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PutOff {
    /// Blobs that nothing seems to refer to.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether somebody is adding or reading some of them at the moment.
    pub in_use: bool,
    /// What could not be read, so that it may refer to them, or could not be removed.
    pub reasons: Vec<String>,
}

/// Answer of `GET /api/lode/linked`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkedResponse {
    /// Manifests without a tag, by repository.
    pub manifests: Vec<LinkedManifest>,
}

/// A manifest without a tag, which a client of the registry sent, or which passed through from another registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkedManifest {
    /// Repository and digest: the name by which it is removed.
    pub name: String,
    /// Its digest.
    pub digest: String,
    /// When it was sent, passed through or was used; RFC 3339.
    pub used: String,
    /// Bytes of its blobs that are here; those that others share, too.
    pub bytes: u64,
}

/// Body of `POST /api/lode/prune`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PruneRequest {
    /// Only tell what would be removed.
    pub dry_run: bool,
    /// Remove models and manifests without a tag, too, that were not used for so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than: Option<u64>,
}

/// Answer of `POST /api/lode/prune`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PruneResponse {
    /// Models that were not used for long.
    pub models: Vec<PruneModel>,
    /// Manifests without a tag that were not used for long.
    #[serde(default)]
    pub linked: Vec<PruneModel>,
    /// Models with their earlier versions.
    pub versions: Vec<PruneVersions>,
    /// Ingests that nobody goes on with.
    pub ingests: u64,
    /// Their bytes.
    pub ingest_bytes: u64,
    /// What the collection afterwards deleted; missing in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collected: Option<GcResponse>,
}

/// A model, or a manifest without a tag, that was not used for long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PruneModel {
    /// Its name.
    pub name: String,
    /// When it was last used; RFC 3339.
    pub used: String,
    /// Bytes of its blobs; those that others share stay.
    pub bytes: u64,
}

/// Earlier versions of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PruneVersions {
    /// The model's name.
    pub name: String,
    /// Digests of the versions.
    pub digests: Vec<String>,
}
