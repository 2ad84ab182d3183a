//! Blobs that a model shares with other models, and its lineage.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Response of `POST /api/lode/sharing`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SharingResponse {
    /// Full name of the model.
    pub model: String,
    /// Digest of its manifest.
    pub digest: String,
    /// Models that share blobs with it, sorted by shared bytes, largest first.
    pub models: Vec<SharingModel>,
    /// Blobs that other models have too.
    pub blobs: Vec<SharedBlob>,
}

/// A model that shares blobs with the requested one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SharingModel {
    /// Name of the model.
    pub name: String,
    /// Number of shared blobs.
    pub blobs: u64,
    /// Bytes of the shared blobs.
    pub bytes: u64,
}

/// A blob that several models have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SharedBlob {
    /// Digest of the blob.
    pub digest: String,
    /// Number of other models that have it.
    pub models: u64,
    /// Some of those models, as indices into `models` of the response.
    pub some: Vec<u64>,
}

/// Response of `POST /api/lode/lineage`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LineageResponse {
    /// Full name of the model.
    pub model: String,
    /// Digest of its manifest.
    pub digest: String,
    /// Digest of the manifest that the model was made from, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Models in the store with that manifest.
    pub bases: Vec<Relative>,
    /// Adapters that the model applies to its weights.
    pub adapters: Vec<Adapter>,
    /// Models in the store that were made from this one.
    pub derived: Vec<Relative>,
}

/// A model that the requested one was made from, or that was made from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Relative {
    /// Name of the model.
    pub name: String,
    /// Digest of its manifest.
    pub digest: String,
    /// Human-readable quantization of the weights.
    pub quantization: String,
    /// Bytes of all its blobs.
    pub bytes: u64,
}

/// An adapter of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Adapter {
    /// Name of the layer.
    pub name: String,
    /// Digest of the blob.
    pub digest: String,
    /// Size in bytes.
    pub bytes: u64,
}
