//! `/healthz` and `/readyz`: whether the daemon lives, and whether it is of use.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use content::text::size;
use schemars::JsonSchema;
use serde::Serialize;

use crate::daemon::Daemon;
use crate::models::blocking;

/// With less free space than this not even a manifest is sure to be stored.
const LEAST_SPACE: u64 = 16 << 20;

/// Answer of `GET /readyz`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Readiness {
    ready: bool,
    /// What is in the way.
    problems: Vec<String>,
}

/// `GET /healthz`: this very answer is the proof.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: 503 while something is in the way of requests.
pub(crate) async fn readyz(State(daemon): State<Daemon>) -> (StatusCode, Json<Readiness>) {
    let mut problems = Vec::new();
    let looked = blocking(&daemon.library, |library| {
        library.store.check_names()?;
        Ok(library.store.free_space()?)
    });
    match looked.await {
        Ok(free) if free < LEAST_SPACE => {
            problems.push(format!(
                "the disk of the store has {} free, expected at least {}",
                size(free),
                size(LEAST_SPACE)
            ));
        }
        Ok(_) => {}
        Err(failed) => problems.push(format!("the store cannot be read: {}", failed.message)),
    }
    if !daemon.settings.runner.is_file() {
        problems.push(format!("the runner `{}` is not there", daemon.settings.runner.display()));
    }
    let status = if problems.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Readiness { ready: problems.is_empty(), problems }))
}
