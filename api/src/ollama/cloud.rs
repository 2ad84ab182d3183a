//! Ollama's cloud, which is not here.

use schemars::JsonSchema;
use serde::Serialize;

/// Answer of `GET /api/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StatusResponse {
    /// Whether models may run elsewhere.
    pub cloud: CloudStatus,
}

/// Whether models may run elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CloudStatus {
    /// They may not.
    pub disabled: bool,
    /// What switched it off.
    pub source: String,
}
