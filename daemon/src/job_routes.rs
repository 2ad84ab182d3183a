//! `/api/lode/jobs` and `/api/lode/bandwidth`.

use api::lode::{BandwidthRequest, BandwidthResponse, JobChange, JobEntry, JobRequest, JobsResponse};
use axum::Json;
use axum::extract::State;
use axum::response::Response;

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::job_tasks::runner;
use crate::jobs::Watcher;

pub(crate) async fn jobs(State(daemon): State<Daemon>) -> Json<JobsResponse> {
    Json(JobsResponse { jobs: daemon.jobs.list(), limit: daemon.limit.current() })
}

pub(crate) async fn pause(
    State(daemon): State<Daemon>,
    Body(request): Body<JobRequest>,
) -> Result<Json<JobEntry>, Failed> {
    let job = daemon.jobs.find(request.id)?;
    job.pause()?;
    Ok(Json(job.entry()))
}

pub(crate) async fn resume(
    State(daemon): State<Daemon>,
    Body(request): Body<JobRequest>,
) -> Result<Json<JobEntry>, Failed> {
    let job = daemon.jobs.find(request.id)?;
    job.begin(&runner(&daemon))?;
    Ok(Json(job.entry()))
}

pub(crate) async fn cancel(
    State(daemon): State<Daemon>,
    Body(request): Body<JobRequest>,
) -> Result<Json<JobEntry>, Failed> {
    let job = daemon.jobs.find(request.id)?;
    job.cancel()?;
    Ok(Json(job.entry()))
}

pub(crate) async fn change(
    State(daemon): State<Daemon>,
    Body(request): Body<JobChange>,
) -> Result<Json<JobEntry>, Failed> {
    let job = daemon.jobs.find(request.id)?;
    job.change(request.limit, request.priority);
    Ok(Json(job.entry()))
}

/// Follows a job; it is not affected if the client disconnects.
pub(crate) async fn watch(State(daemon): State<Daemon>, Body(request): Body<JobRequest>) -> Result<Response, Failed> {
    let job = daemon.jobs.find(request.id)?;
    Watcher::of(&job).response(Some(true), false).await
}

/// Sets the limit that all transfers share.
pub(crate) async fn bandwidth(
    State(daemon): State<Daemon>,
    Body(request): Body<BandwidthRequest>,
) -> Json<BandwidthResponse> {
    daemon.limit.request(request.limit);
    Json(BandwidthResponse { limit: daemon.limit.current() })
}
