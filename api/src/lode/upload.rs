//! Files that are sent by who does not know their digest.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer of `POST /api/lode/upload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UploadResponse {
    /// What the bytes hash to. `files` of a `POST /api/create` within an hour may name it.
    pub digest: String,
    /// How many there are.
    pub size: u64,
}
