//! The tasks of jobs: pulls, pushes and creates.

mod create;
mod progress;

use std::sync::Arc;

use api::ollama::{PullRequest, PushRequest};
use content::operation::{OperationError, Result, Unclassified};
use content::text::size;
use futures_util::FutureExt;
use manifests::ModelRef;
use registry::client::Pushed;
use transfer::{Hosts, HubReference, HubSettings, Meter, Push, PushedBlob};

use crate::daemon::Daemon;
use crate::jobs::{Job, JobFailure, JobRunner, JobWork};
use progress::with_progress;

/// Returns the function that starts the task of a job.
pub(crate) fn runner(daemon: &Daemon) -> JobRunner {
    let daemon = daemon.clone();
    Arc::new(move |job: Arc<Job>| {
        let daemon = daemon.clone();
        async move { run(&daemon, &job).await }.boxed()
    })
}

async fn run(daemon: &Daemon, job: &Arc<Job>) -> std::result::Result<(), JobFailure> {
    match job.work() {
        JobWork::Pull(request) => Ok(pull(daemon, job, request).await?),
        JobWork::Push(request) => Ok(push(daemon, job, request).await?),
        JobWork::Create(request) => Ok(create::run(daemon, job, request).await?),
    }
}

async fn pull(daemon: &Daemon, job: &Job, request: &PullRequest) -> Result<()> {
    let work = async |meter: Arc<Meter>| {
        let pulled = fetch(daemon, job, &request.model, request.insecure, &meter).await?;
        let (fetched, present) = (pulled.fetched, pulled.present);
        meter.status(format!(
            "fetched {} blobs ({}); {} blobs ({}) were already in the store",
            fetched.blobs,
            size(fetched.bytes),
            present.blobs,
            size(present.bytes)
        ));
        meter.status("removing unused layers");
        let library = daemon.library.clone();
        tokio::task::spawn_blocking(move || library.collect()).await.internal()?;
        Ok(())
    };
    with_progress(job.feed(), "pulling", work).await
}

/// Pulls the base model of a create.
pub(crate) async fn pull_base(daemon: &Daemon, job: &Job, name: &str) -> Result<()> {
    let work = async |meter: Arc<Meter>| fetch(daemon, job, name, false, &meter).await.map(drop);
    with_progress(job.feed(), "pulling", work).await
}

/// Pulls a model of a registry or a hub.
async fn fetch(daemon: &Daemon, job: &Job, name: &str, insecure: bool, meter: &Arc<Meter>) -> Result<transfer::Pulled> {
    // The grammar of other names does not include revisions of a hub's model.
    if let Some(reference) = HubReference::parse(name)? {
        let hub = HubSettings { pace: job.pace(), ..daemon.settings.hub.clone() };
        return transfer::pull_from_hub(&daemon.library, &hub, reference, None, meter).await;
    }
    let hosts = Hosts::new(&daemon.settings.registries, insecure).paced(job.pace());
    transfer::pull(&daemon.library, &hosts, &name.parse()?, meter).await
}

async fn push(daemon: &Daemon, job: &Job, request: &PushRequest) -> Result<()> {
    let (name, destination): (ModelRef, ModelRef) = (request.model.parse()?, request.destination.parse()?);
    let hosts = Hosts::new(&daemon.settings.registries, request.insecure).paced(job.pace());
    let work = async |meter: Arc<Meter>| {
        meter.status("retrieving manifest");
        let push = Push::prepare(&daemon.library, &hosts, &name, &destination).await?;
        meter.status(push_summary(&push.execute(&meter).await?, false));
        Ok::<_, OperationError>(())
    };
    with_progress(job.feed(), "pushing", work).await
}

/// Summarizes how many blobs are sent, mounted and present.
pub(crate) fn push_summary(done: &[PushedBlob], dry_run: bool) -> String {
    let of = |how: Pushed| done.iter().filter(move |blob| blob.how == how);
    let (sent, bytes) = (of(Pushed::Sent).count(), of(Pushed::Sent).map(|blob| blob.descriptor.size).sum::<u64>());
    let (mounted, present) = (of(Pushed::Mounted).count(), of(Pushed::Present).count());
    let verb = if dry_run { "would push" } else { "pushed" };
    format!("{verb} {sent} blobs ({}), mounted {mounted}, {present} were there already", size(bytes))
}
