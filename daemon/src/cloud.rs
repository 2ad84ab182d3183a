//! The parts of Ollama's API that need an account at ollama.com. Lode does not support them, and
//! each response states so.

use api::ollama::{CloudStatus, StatusResponse};
use axum::Json;
use axum::http::{StatusCode, Uri};

use crate::error::Failed;

/// Clients query this before they offer cloud models.
pub(crate) async fn status() -> Json<StatusResponse> {
    Json(StatusResponse { cloud: CloudStatus { disabled: true, source: "config".to_owned() } })
}

pub(crate) async fn absent(uri: Uri) -> Failed {
    let message = format!(
        "`{}` is a service of ollama.com, which Lode does not use: models run on this machine only",
        uri.path()
    );
    Failed::new(StatusCode::NOT_IMPLEMENTED, message)
}
