//! The parts of Ollama's API that need an account there: there is none here, and each says so.

use api::ollama::{CloudStatus, StatusResponse};
use axum::http::{StatusCode, Uri};
use axum::routing::{any, get};
use axum::{Json, Router};

use super::Daemon;
use super::error::Failed;

pub(super) fn routes() -> Router<Daemon> {
    Router::new()
        .route("/api/status", get(status))
        .route("/api/me", any(absent))
        .route("/api/signout", any(absent))
        .route("/api/user/keys/{key}", any(absent))
        .route("/api/web_search", any(absent))
        .route("/api/web_fetch", any(absent))
        .route("/api/experimental/{*rest}", any(absent))
}

/// Clients ask before they offer models that run elsewhere.
async fn status() -> Json<StatusResponse> {
    Json(StatusResponse { cloud: CloudStatus { disabled: true, source: "config".to_owned() } })
}

async fn absent(uri: Uri) -> Failed {
    let message = format!(
        "`{}` is a service of ollama.com, which Lode does not use: models run on this machine only",
        uri.path()
    );
    Failed::new(StatusCode::NOT_IMPLEMENTED, message)
}
