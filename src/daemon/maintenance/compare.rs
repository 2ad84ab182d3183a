//! `/api/lode/diff`.

use api::lode::{DiffRequest, DiffResponse};
use axum::Json;
use axum::extract::State;

use super::Silent;
use crate::daemon::Daemon;
use crate::daemon::error::{Body, Failed};
use crate::daemon::models::{blocking, reference};
use crate::ops::{self, Library};

pub(super) async fn diff(
    State(daemon): State<Daemon>,
    Body(request): Body<DiffRequest>,
) -> Result<Json<DiffResponse>, Failed> {
    let (a, b) = (reference(&request.a, "")?, reference(&request.b, "")?);
    let work = move |library: &Library| {
        // Both stay while they are read.
        let _guard = library.store.guard();
        ops::diff(library, &library.find(&a)?, &library.find(&b)?, request.values, &Silent)
    };
    Ok(Json(blocking(&daemon.library, work).await?))
}
