//! Handlers of `OpenAI`'s API: they translate its documents to and from a call of a model.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod failure;
pub(crate) mod models;
pub(crate) mod rerank;
pub(crate) mod responses;

use std::time::{SystemTime, UNIX_EPOCH};

use rand::Rng;

/// Returns the random part of a response's ids.
pub(crate) fn random_id() -> String {
    format!("{:016x}", rand::rng().random::<u64>())
}

/// Returns Unix time in seconds.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
