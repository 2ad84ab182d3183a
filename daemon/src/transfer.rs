//! `/api/pull` and `/api/push`.

use api::ollama::{Progress, PullRequest, PushLine, PushRequest};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use manifests::ModelRef;
use registry::client::Pushed;
use transfer::{Hosts, HubReference, Push, PushedBlob};

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::job_tasks::{push_summary, runner};
use crate::jobs::{JobOptions, JobWork};
use crate::models::reference;
use crate::stream::lines;

pub(crate) async fn pull(State(daemon): State<Daemon>, Body(request): Body<PullRequest>) -> Result<Response, Failed> {
    let PullRequest { model, name, insecure, blobs, limit, priority, stream } = request;
    let text = if model.is_empty() { &name } else { &model };
    // The grammar of other names does not include revisions of a hub's model.
    let hub = HubReference::parse(text).map_err(|error| Failed::bad_request(format!("{error:#}")))?;
    let model = if hub.is_none() { reference(&model, &name)?.to_string() } else { text.clone() };
    let work = JobWork::Pull(PullRequest { model, insecure, ..PullRequest::default() });
    let options = JobOptions { limit, priority, spec: None };
    daemon.jobs.request(work, options, &runner(&daemon)).response(stream, blobs).await
}

pub(crate) async fn push(State(daemon): State<Daemon>, Body(request): Body<PushRequest>) -> Result<Response, Failed> {
    let name = reference(&request.model, &request.name)?;
    let destination = match request.destination.as_str() {
        "" => name.clone(),
        other => other.parse()?,
    };
    if request.dry_run {
        return plan(&daemon, &name, &destination, &request).await;
    }
    let PushRequest { insecure, blobs, limit, priority, stream, .. } = request;
    let (model, destination) = (name.to_string(), destination.to_string());
    let work = JobWork::Push(PushRequest { model, destination, insecure, ..PushRequest::default() });
    let options = JobOptions { limit, priority, spec: None };
    daemon.jobs.request(work, options, &runner(&daemon)).response(stream, blobs).await
}

/// Returns what a push would send.
async fn plan(
    daemon: &Daemon,
    name: &ModelRef,
    destination: &ModelRef,
    request: &PushRequest,
) -> Result<Response, Failed> {
    let hosts = Hosts::new(&daemon.settings.registries, request.insecure);
    let planned = Push::prepare(&daemon.library, &hosts, name, destination).await?.plan().await?;
    if request.stream == Some(false) {
        return Ok(Json(Progress::status("success")).into_response());
    }
    let (lines, response) = lines();
    tokio::spawn(async move {
        lines.send(&Progress::status(push_summary(&planned, true))).await;
        for line in planned.iter().map(line) {
            lines.send(&line).await;
        }
        lines.send(&Progress::status("success")).await;
    });
    Ok(response)
}

fn line(blob: &PushedBlob) -> PushLine {
    let status = match blob.how {
        Pushed::Present => "present",
        Pushed::Mounted => "mount",
        Pushed::Sent => "send",
    };
    PushLine {
        status: status.to_owned(),
        name: blob.name.clone(),
        digest: blob.descriptor.digest.to_string(),
        total: blob.descriptor.size,
    }
}
