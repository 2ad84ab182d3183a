//! The fields that all documents of a response share.

use schemars::JsonSchema;
use serde::Serialize;

/// Id, time and model of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Head {
    /// Unique id of the response, with a prefix for its kind, such as `chatcmpl-`.
    pub id: String,
    /// Type of the document.
    pub object: &'static str,
    /// Creation time in seconds since 1970.
    pub created: u64,
    /// Name of the model, as the client wrote it.
    pub model: String,
    /// Digest of the model's manifest. The same digest means the same weights.
    pub system_fingerprint: String,
}
