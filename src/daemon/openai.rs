//! `OpenAI`'s API: its words for a call of a model.

mod chat;
mod completions;
mod embeddings;
mod failure;
mod models;
mod responses;

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::routing::{get, post};
use rand::Rng;

use super::Daemon;

/// All endpoints.
pub(super) fn routes() -> Router<Daemon> {
    Router::new()
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*model}", get(models::show))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/rerank", post(models::rerank))
}

/// What makes the ids of an answer its own.
pub(super) fn random_id() -> String {
    format!("{:016x}", rand::rng().random::<u64>())
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
