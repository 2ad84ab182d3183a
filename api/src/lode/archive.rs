//! Archives of models: OCI image layouts in a tar.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/save`. The response is the tar.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SaveRequest {
    /// Names of the models.
    pub models: Vec<String>,
    /// Content that the receiver already has and that the archive omits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<SinceRequest>,
}

/// Content that the receiver of an archive already has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SinceRequest {
    /// The blobs of this model.
    Model(String),
    /// The blobs of an earlier archive.
    Archive {
        /// Digest of the first manifest of that archive.
        manifest: String,
        /// Digests of the blobs of that archive.
        blobs: Vec<String>,
    },
}

/// Response of `POST /api/load`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoadResponse {
    /// Models that were loaded.
    pub models: Vec<LoadedModel>,
    /// Number of blobs that were added to the store.
    pub new_blobs: u64,
    /// Bytes of the added blobs.
    pub new_bytes: u64,
    /// Number of blobs that the store already had.
    pub shared_blobs: u64,
    /// Bytes of the blobs that the store already had.
    pub shared_bytes: u64,
}

/// A loaded model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoadedModel {
    /// Name of the model.
    pub name: String,
    /// Digest of its manifest.
    pub digest: String,
}
