//! What all documents of one answer have in common.

use schemars::JsonSchema;
use serde::Serialize;

/// Id, time and model of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Head {
    /// Made for this answer; begins with what it is of, as `chatcmpl-`.
    pub id: String,
    /// The kind of document.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The name as the client wrote it.
    pub model: String,
    /// The digest of the model's manifest: the same digest, the same weights.
    pub system_fingerprint: String,
}
