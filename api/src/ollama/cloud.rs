//! Status of Ollama's cloud, which Lode does not use.

use schemars::JsonSchema;
use serde::Serialize;

/// Response of `GET /api/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StatusResponse {
    /// Status of cloud models.
    pub cloud: CloudStatus,
}

/// Status of cloud models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CloudStatus {
    /// Always true: models never run in the cloud.
    pub disabled: bool,
    /// The setting that disabled cloud models.
    pub source: String,
}
