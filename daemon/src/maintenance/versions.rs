//! `/api/lode/history`, `rollback`, `pin`, `unpin`.

use api::lode::{HistoryEntry, HistoryResponse, ModelRequest, RollbackRequest, RollbackResponse, VersionState};
use axum::Json;
use axum::extract::State;

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::model_documents::timestamp;
use crate::models::{blocking, reference};

pub(crate) async fn history(
    State(daemon): State<Daemon>,
    Body(request): Body<ModelRequest>,
) -> Result<Json<HistoryResponse>, Failed> {
    let reference = reference(&request.model, "")?;
    let (model, versions) = blocking(&daemon.library, move |library| library.versions(&reference)).await?;
    let entry = |version: library::Version| HistoryEntry {
        digest: version.digest.to_string(),
        since: timestamp(version.since),
        state: match version.state {
            library::VersionState::Current => VersionState::Current,
            library::VersionState::Here => VersionState::Here,
            library::VersionState::Gone => VersionState::Gone,
        },
    };
    Ok(Json(HistoryResponse { model, versions: versions.into_iter().map(entry).collect() }))
}

pub(crate) async fn rollback(
    State(daemon): State<Daemon>,
    Body(request): Body<RollbackRequest>,
) -> Result<Json<RollbackResponse>, Failed> {
    let reference = reference(&request.model, "")?;
    let work = move |library: &library::Library| library.roll_back(&reference, request.to.as_deref());
    let done = blocking(&daemon.library, work).await?;
    Ok(Json(RollbackResponse { model: done.model, from: done.from.to_string(), to: done.to.to_string() }))
}

pub(crate) async fn pin(
    State(daemon): State<Daemon>,
    Body(request): Body<ModelRequest>,
) -> Result<Json<ModelRequest>, Failed> {
    let reference = reference(&request.model, "")?;
    let model = blocking(&daemon.library, move |library| library.pin(&reference)).await?;
    Ok(Json(ModelRequest { model }))
}

pub(crate) async fn unpin(
    State(daemon): State<Daemon>,
    Body(request): Body<ModelRequest>,
) -> Result<Json<ModelRequest>, Failed> {
    let reference = reference(&request.model, "")?;
    let model = blocking(&daemon.library, move |library| library.unpin(&reference)).await?;
    Ok(Json(ModelRequest { model }))
}
