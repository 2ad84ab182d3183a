//! Models that registries and the hub offer: the documents of `POST /api/lode/search`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/search`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SearchRequest {
    /// Text in the names of the models. If it is empty, registries list all models, and the hub is
    /// not searched.
    pub query: String,
    /// Connect to registries without TLS.
    pub insecure: bool,
}

/// Response of `POST /api/lode/search`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SearchResponse {
    /// Models that can be pulled.
    pub models: Vec<OfferedModel>,
    /// Sources that could not be reached or do not list models.
    pub silent: Vec<SilentSource>,
}

/// A model that can be pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OfferedModel {
    /// Name to pull the model by.
    pub name: String,
    /// The registry, mirror or hub that offers it.
    pub source: String,
    /// Number of downloads, if the source reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downloads: Option<u64>,
}

/// A source without a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilentSource {
    /// The registry, mirror or hub.
    pub source: String,
    /// Why there is no result.
    pub reason: String,
}
