//! What registries and the hub offer: the documents of `POST /api/lode/search`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/search`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SearchRequest {
    /// A text in the models' names; without it registries list all, and the hub is not asked.
    pub query: String,
    /// Talk to registries without TLS.
    pub insecure: bool,
}

/// Answer of `POST /api/lode/search`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SearchResponse {
    /// What can be pulled.
    pub models: Vec<OfferedModel>,
    /// Who could not be asked, or lists nothing.
    pub silent: Vec<SilentSource>,
}

/// A model that can be pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OfferedModel {
    /// The name for a pull.
    pub name: String,
    /// The registry, mirror or hub that offers it.
    pub source: String,
    /// How often it was fetched, where the source says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downloads: Option<u64>,
}

/// A source that tells nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilentSource {
    /// The registry, mirror or hub.
    pub source: String,
    /// Why.
    pub reason: String,
}
