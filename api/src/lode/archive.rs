//! Models as files: OCI image layouts in a tar.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/save`; the answer is the tar.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SaveRequest {
    /// Names of the models.
    pub models: Vec<String>,
    /// What the other side has already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<SinceRequest>,
}

/// What the other side of a save has already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SinceRequest {
    /// This model.
    Model(String),
    /// What an earlier archive has.
    Archive {
        /// The digest of its first manifest.
        manifest: String,
        /// The digests of its blobs.
        blobs: Vec<String>,
    },
}

/// Answer of `POST /api/load`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoadResponse {
    /// The models that have their names now.
    pub models: Vec<LoadedModel>,
    /// Blobs that were new.
    pub new_blobs: u64,
    /// Their bytes.
    pub new_bytes: u64,
    /// Blobs of the archive that were there already.
    pub shared_blobs: u64,
    /// Their bytes.
    pub shared_bytes: u64,
}

/// A model that was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoadedModel {
    /// Its name.
    pub name: String,
    /// Digest of its manifest.
    pub digest: String,
}
