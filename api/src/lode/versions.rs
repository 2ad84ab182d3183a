//! Histories, going back, pins.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/history`, `pin` and `unpin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelRequest {
    /// Name of the model.
    pub model: String,
}

/// Answer of `POST /api/lode/history`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryResponse {
    /// Name of the model, complete.
    pub model: String,
    /// Its versions, the newest first.
    pub versions: Vec<HistoryEntry>,
}

/// A version of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// Digest of its manifest.
    pub digest: String,
    /// Since when the name named it; RFC 3339.
    pub since: String,
    /// Whether one can go back to it.
    pub state: VersionState,
}

/// Whether one can go back to a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VersionState {
    /// It is what the name names.
    Current,
    /// It is all there.
    Here,
    /// Parts of it were deleted.
    Gone,
}

impl VersionState {
    /// The word in tables.
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
    /// The digest of the version, or its beginning; without it the last version before the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// Answer of `POST /api/lode/rollback`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RollbackResponse {
    /// Name of the model, complete.
    pub model: String,
    /// What it named before.
    pub from: String,
    /// What it names now.
    pub to: String,
}
