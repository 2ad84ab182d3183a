//! `/healthz` and `/readyz`: whether the daemon is alive, and whether it can serve requests.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use content::text::size;
use schemars::JsonSchema;
use serde::Serialize;

use crate::daemon::Daemon;
use crate::models::blocking;

/// With less free space than this, even storing a manifest may fail.
const LEAST_SPACE: u64 = 16 << 20;

/// Response of `GET /readyz`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Readiness {
    ready: bool,
    /// The reasons why the daemon is not ready.
    problems: Vec<String>,
}

impl Readiness {
    /// The response with these problems.
    pub(crate) fn of(problems: Vec<String>) -> (StatusCode, Json<Self>) {
        let status = if problems.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, Json(Self { ready: problems.is_empty(), problems }))
    }
}

/// `GET /healthz`: answers if the daemon is alive.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: 503 while requests cannot be served.
pub(crate) async fn readyz(State(daemon): State<Daemon>) -> (StatusCode, Json<Readiness>) {
    let mut problems = Vec::new();
    let looked = blocking(&daemon.library, |library| {
        library.names().check()?;
        Ok(library.free_space()?)
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
    Readiness::of(problems)
}
