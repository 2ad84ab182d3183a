//! Version history, rollback and pins.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/history`, `pin` and `unpin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelRequest {
    /// Name of the model.
    pub model: String,
}

/// Response of `POST /api/lode/history`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryResponse {
    /// Full name of the model.
    pub model: String,
    /// Versions, newest first.
    pub versions: Vec<HistoryEntry>,
}

/// A version of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// Digest of its manifest.
    pub digest: String,
    /// Time since when the name refers to this version (RFC 3339).
    pub since: String,
    /// Whether a rollback to this version is possible.
    pub state: VersionState,
}

/// Whether a rollback to a version is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VersionState {
    /// The name refers to this version.
    Current,
    /// All parts of the version are in the store.
    Here,
    /// Parts of the version were deleted.
    Gone,
}

impl VersionState {
    /// Returns the word for this state in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Here => "here",
            Self::Gone => "gone",
        }
    }
}

/// Body of `POST /api/lode/rollback`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// Name of the model.
    pub model: String,
    /// Digest of the version or a prefix of it. Without it, the version before the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// Response of `POST /api/lode/rollback`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RollbackResponse {
    /// Full name of the model.
    pub model: String,
    /// Digest of the version before the rollback.
    pub from: String,
    /// Digest of the version after the rollback.
    pub to: String,
}
