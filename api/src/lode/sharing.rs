//! What a model has in common with others, and where it is from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer of `POST /api/lode/sharing`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SharingResponse {
    /// Name of the model, complete.
    pub model: String,
    /// Digest of its manifest.
    pub digest: String,
    /// The models that have blobs of it, those with the most bytes first.
    pub models: Vec<SharingModel>,
    /// Its blobs that others have, too.
    pub blobs: Vec<SharedBlob>,
}

/// A model that has blobs of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SharingModel {
    /// Its name.
    pub name: String,
    /// How many blobs both have.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A blob that several models have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SharedBlob {
    /// Its digest.
    pub digest: String,
    /// How many other models have it.
    pub models: u64,
    /// Some of them, as places in `models` of the answer.
    pub some: Vec<u64>,
}

/// Answer of `POST /api/lode/lineage`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LineageResponse {
    /// Name of the model, complete.
    pub model: String,
    /// Digest of its manifest.
    pub digest: String,
    /// The manifest that it was made from, where it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The models that are called so, where they are here.
    pub bases: Vec<Relative>,
    /// The adapters that it applies to the weights.
    pub adapters: Vec<Adapter>,
    /// The models here that were made from it.
    pub derived: Vec<Relative>,
}

/// A model that another was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Relative {
    /// Its name.
    pub name: String,
    /// Digest of its manifest.
    pub digest: String,
    /// How its weights are quantized, for people.
    pub quantization: String,
    /// Bytes of all its blobs.
    pub bytes: u64,
}

/// An adapter of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Adapter {
    /// The layer's name.
    pub name: String,
    /// Its blob.
    pub digest: String,
    /// Its length in bytes.
    pub bytes: u64,
}
