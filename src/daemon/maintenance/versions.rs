//! `/api/lode/history`, `rollback`, `pin`, `unpin`.

use api::lode::{HistoryEntry, HistoryResponse, ModelRequest, RollbackRequest, RollbackResponse};
use axum::Json;
use axum::extract::State;

use crate::daemon::Daemon;
use crate::daemon::describe::timestamp;
use crate::daemon::error::{Body, Failed};
use crate::daemon::models::{blocking, reference};

pub(super) async fn history(
    State(daemon): State<Daemon>,
    Body(request): Body<ModelRequest>,
) -> Result<Json<HistoryResponse>, Failed> {
    let reference = reference(&request.model, "")?;
    let (model, versions) = blocking(&daemon.library, move |library| library.versions(&reference)).await?;
    let entry = |version: crate::ops::Version| HistoryEntry {
        digest: version.digest.to_string(),
        since: timestamp(version.since),
        state: version.state,
    };
    Ok(Json(HistoryResponse { model, versions: versions.into_iter().map(entry).collect() }))
}

pub(super) async fn rollback(
    State(daemon): State<Daemon>,
    Body(request): Body<RollbackRequest>,
) -> Result<Json<RollbackResponse>, Failed> {
    let reference = reference(&request.model, "")?;
    let work = move |library: &crate::ops::Library| library.roll_back(&reference, request.to.as_deref());
    let done = blocking(&daemon.library, work).await?;
    Ok(Json(RollbackResponse { model: done.model, from: done.from.to_string(), to: done.to.to_string() }))
}

pub(super) async fn pin(
    State(daemon): State<Daemon>,
    Body(request): Body<ModelRequest>,
) -> Result<Json<ModelRequest>, Failed> {
    let reference = reference(&request.model, "")?;
    let model = blocking(&daemon.library, move |library| library.pin(&reference)).await?;
    Ok(Json(ModelRequest { model }))
}

pub(super) async fn unpin(
    State(daemon): State<Daemon>,
    Body(request): Body<ModelRequest>,
) -> Result<Json<ModelRequest>, Failed> {
    let reference = reference(&request.model, "")?;
    let model = blocking(&daemon.library, move |library| library.unpin(&reference)).await?;
    Ok(Json(ModelRequest { model }))
}
