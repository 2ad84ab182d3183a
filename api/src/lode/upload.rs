//! Uploads of files whose digest the client does not know.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Response of `POST /api/lode/upload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UploadResponse {
    /// Digest of the uploaded bytes. A `POST /api/create` within an hour may name it in `files`.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
}
