//! `/api/lode/search`.

use api::lode::{OfferedModel, SearchRequest, SearchResponse, SilentSource};
use axum::Json;
use axum::extract::State;
use transfer::{Hosts, Offered};

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;

pub(crate) async fn search(
    State(daemon): State<Daemon>,
    Body(request): Body<SearchRequest>,
) -> Result<Json<SearchResponse>, Failed> {
    let hosts = Hosts::new(&daemon.settings.registries, request.insecure);
    let found = transfer::search(&daemon.library, &hosts, &daemon.settings.hub, request.query.trim()).await?;
    let model = |Offered { name, source, downloads }| OfferedModel { name, source, downloads };
    let silent = |(source, reason)| SilentSource { source, reason };
    Ok(Json(SearchResponse {
        models: found.offered.into_iter().map(model).collect(),
        silent: found.silent.into_iter().map(silent).collect(),
    }))
}
