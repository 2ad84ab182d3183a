//! `/api/pull` and `/api/push`.

use std::sync::Arc;
use std::time::Duration;

use api::ollama::{ErrorResponse, Progress, PullRequest, PushLine, PushRequest};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use content::operation::Unclassified;
use content::text::size;
use registry::client::Pushed;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models::reference;
use crate::stream::{Lines, lines};
use transfer::{Hosts, HubReference, Meter, Push, PushedBlob};

/// Time between two progress lines.
const TICK: Duration = Duration::from_millis(100);

pub(crate) async fn pull(State(daemon): State<Daemon>, Body(request): Body<PullRequest>) -> Result<Response, Failed> {
    let text = if request.model.is_empty() { &request.name } else { &request.model };
    // The grammar of other names does not include revisions of a hub's model.
    let hub = HubReference::parse(text).map_err(|error| Failed::bad_request(format!("{error:#}")))?;
    let name = if hub.is_none() { Some(reference(&request.model, &request.name)?) } else { None };
    let hosts = Hosts::new(&daemon.settings.registries, request.insecure);
    let job = async move |meter: Arc<Meter>| {
        let pulled = match (hub, name) {
            (Some(hub), _) => transfer::pull_from_hub(&daemon.library, &daemon.settings.hub, hub, None, &meter).await?,
            (None, Some(name)) => transfer::pull(&daemon.library, &hosts, &name, &meter).await?,
            (None, None) => content::bail!("model is required"),
        };
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
        Ok(Vec::new())
    };
    run(Telling { verb: "pulling", blobs: request.blobs }, request.stream, job).await
}

pub(crate) async fn push(State(daemon): State<Daemon>, Body(request): Body<PushRequest>) -> Result<Response, Failed> {
    let name = reference(&request.model, &request.name)?;
    let destination = match request.destination.as_str() {
        "" => name.clone(),
        other => other.parse()?,
    };
    let hosts = Hosts::new(&daemon.settings.registries, request.insecure);
    let job = async move |meter: Arc<Meter>| {
        meter.status("retrieving manifest");
        let push = Push::prepare(&daemon.library, &hosts, &name, &destination).await?;
        let done = if request.dry_run { push.plan().await? } else { push.execute(&meter).await? };
        meter.status(summary(&done, request.dry_run));
        Ok(if request.dry_run { done.iter().map(line).collect() } else { Vec::new() })
    };
    run(Telling { verb: "pushing", blobs: request.blobs }, request.stream, job).await
}

fn summary(done: &[PushedBlob], dry_run: bool) -> String {
    let of = |how: Pushed| done.iter().filter(move |blob| blob.how == how);
    let (sent, bytes) = (of(Pushed::Sent).count(), of(Pushed::Sent).map(|blob| blob.descriptor.size).sum::<u64>());
    let (mounted, present) = (of(Pushed::Mounted).count(), of(Pushed::Present).count());
    let verb = if dry_run { "would push" } else { "pushed" };
    format!("{verb} {sent} blobs ({}), mounted {mounted}, {present} were there already", size(bytes))
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

/// How a transfer reports its progress.
#[derive(Clone, Copy, Debug)]
struct Telling {
    /// The verb of progress lines: `pulling` or `pushing`.
    verb: &'static str,
    /// Whether there are lines about single blobs.
    blobs: bool,
}

/// The pull of a base model before a create.
const BASE: Telling = Telling { verb: "pulling", blobs: false };

/// Runs a transfer and streams its progress. It stops when the client disconnects; content that has
/// been transferred is kept.
async fn run<J, F>(how: Telling, stream: Option<bool>, job: J) -> Result<Response, Failed>
where
    J: FnOnce(Arc<Meter>) -> F + Send + 'static,
    F: Future<Output = content::operation::Result<Vec<PushLine>>> + Send + 'static,
{
    if stream == Some(false) {
        let (sender, _statuses) = unbounded_channel();
        job(Arc::new(Meter::new(sender))).await?;
        return Ok(Json(Progress::status("success")).into_response());
    }
    let (lines, response) = lines();
    tokio::spawn(async move {
        match told(how, &lines, job).await {
            Some(Ok(plan)) => {
                for line in plan {
                    lines.send(&line).await;
                }
                lines.send(&Progress::status("success")).await;
            }
            Some(Err(error)) => {
                lines.send(&ErrorResponse { error: Failed::from(error).message }).await;
            }
            None => tracing::debug!("the client is gone, the transfer stops"),
        }
    });
    Ok(response)
}

/// Pulls the base model of a create and streams the progress. Returns `None` if the client
/// disconnects.
pub(crate) async fn pull_base(
    daemon: &Daemon,
    name: &str,
    lines: &Lines,
    streams: bool,
) -> Option<content::operation::Result<()>> {
    let job = async |meter: Arc<Meter>| {
        let hosts = Hosts::new(&daemon.settings.registries, false);
        match HubReference::parse(name)? {
            Some(hub) => transfer::pull_from_hub(&daemon.library, &daemon.settings.hub, hub, None, &meter).await,
            None => transfer::pull(&daemon.library, &hosts, &name.parse()?, &meter).await,
        }
    };
    if !streams {
        let (sender, _statuses) = unbounded_channel();
        return tokio::select! {
            pulled = job(Arc::new(Meter::new(sender))) => Some(pulled.map(drop)),
            () = lines.closed() => None,
        };
    }
    Some(told(BASE, lines, job).await?.map(drop))
}

/// Runs a transfer and sends its progress. Returns `None` if the client disconnects.
async fn told<T, J, F>(how: Telling, lines: &Lines, job: J) -> Option<content::operation::Result<T>>
where
    J: FnOnce(Arc<Meter>) -> F,
    F: Future<Output = content::operation::Result<T>>,
{
    let (sender, statuses) = unbounded_channel();
    let meter = Arc::new(if how.blobs { Meter::of_blobs(sender) } else { Meter::new(sender) });
    let teller = Teller { how, lines: lines.clone(), meter: meter.clone(), told: 0 };
    tokio::select! {
        result = teller.tell(statuses, job(meter)) => Some(result),
        () = lines.closed() => None,
    }
}

/// Converts a transfer's progress to lines.
struct Teller {
    how: Telling,
    lines: Lines,
    meter: Arc<Meter>,
    told: u64,
}

impl Teller {
    async fn tell<T>(
        mut self,
        mut statuses: UnboundedReceiver<String>,
        work: impl Future<Output = content::operation::Result<T>>,
    ) -> content::operation::Result<T> {
        let mut work = std::pin::pin!(work);
        let mut ticks = tokio::time::interval(TICK);
        let result = loop {
            tokio::select! {
                biased;
                Some(status) = statuses.recv() => self.status(status).await,
                result = &mut work => break result,
                _ = ticks.tick() => {
                    while let Ok(status) = statuses.try_recv() {
                        self.status(status).await;
                    }
                    self.blobs().await;
                    self.bytes().await;
                }
            }
        };
        while let Ok(status) = statuses.try_recv() {
            self.status(status).await;
        }
        self.blobs().await;
        result
    }

    async fn status(&mut self, status: String) {
        self.blobs().await;
        if self.meter.reading().0 > self.told {
            self.bytes().await;
        }
        self.lines.send(&Progress::status(status)).await;
    }

    async fn blobs(&self) {
        for blob in self.meter.blobs_that_moved() {
            let line = Progress {
                // Ollama's name of a layer.
                status: format!("{} {}", self.how.verb, blob.digest.short()),
                digest: Some(blob.digest.to_string()),
                name: Some(blob.name),
                total: Some(blob.total),
                completed: Some(blob.completed),
                ..Progress::default()
            };
            self.lines.send(&line).await;
        }
    }

    async fn bytes(&mut self) {
        let (completed, total) = self.meter.reading();
        if total == 0 || (completed == self.told && completed != 0) {
            return;
        }
        self.told = completed;
        let line = Progress {
            status: format!("{} model", self.how.verb),
            digest: Some("sha256:model".to_owned()),
            name: None,
            total: Some(total),
            completed: Some(completed),
            ..Progress::default()
        };
        self.lines.send(&line).await;
    }
}
