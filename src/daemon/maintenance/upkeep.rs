//! `/api/lode/fsck`, `repair`, `du`.

use std::time::{Duration, SystemTime};

use api::lode::{DuResponse, FsckRequest, RepairRequest, Sample};
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use manifests::ModelRef;

use super::stepwise;
use crate::daemon::Daemon;
use crate::daemon::error::{Body, Failed};
use crate::daemon::models::blocking;
use crate::ops::{self, Hosts, Refetch, Selection, Upstream};

pub(super) async fn fsck(State(daemon): State<Daemon>, Body(request): Body<FsckRequest>) -> Result<Response, Failed> {
    let selection = match (request.sample, request.since) {
        (None, None) => Selection::All,
        (Some(Sample::Count(count)), None) => Selection::Count(count),
        (Some(Sample::Percent(percent)), None) => Selection::Percent(percent),
        (None, Some(seconds)) => Selection::NotWithin(Duration::from_secs(seconds)),
        (Some(_), Some(_)) => return Err(Failed::bad_request("give one of 'sample' and 'since'")),
    };
    Ok(stepwise(&daemon, "reading blobs", move |library, observer| {
        if request.rebuild {
            observer.status("making the index anew".to_owned());
            library.rebuild()?;
        }
        ops::fsck(library, selection, SystemTime::now(), observer)
    }))
}

pub(super) async fn repair(
    State(daemon): State<Daemon>,
    Body(request): Body<RepairRequest>,
) -> Result<Response, Failed> {
    let model: Option<ModelRef> = request.model.map(|model| model.parse()).transpose()?;
    let source = Refetch {
        upstream: Upstream {
            library: daemon.library.clone(),
            hosts: Hosts::new(&daemon.config.registries, false),
            allowed: None,
        },
        hub: daemon.config.hub.clone(),
        handle: tokio::runtime::Handle::current(),
    };
    Ok(stepwise(&daemon, "reading blobs", move |library, observer| {
        ops::repair(library, model.as_ref(), &source, observer)
    }))
}

pub(super) async fn du(State(daemon): State<Daemon>) -> Result<Json<DuResponse>, Failed> {
    Ok(Json(blocking(&daemon.library, ops::usage).await?))
}
