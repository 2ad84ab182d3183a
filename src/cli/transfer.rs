//! `lode pull` and `lode push`.

use std::cell::OnceCell;
use std::collections::VecDeque;

use anyhow::{Result, bail, ensure};
use api::lode::JobRequest;
use api::ollama::{PullRequest, PushRequest, ShowRequest, ShowResponse};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use indicatif::ProgressBar;
use manifests::ModelRef;
use reqwest::Response;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::client::{Client, Refused};
use super::job_settings::JobSettings;
use super::text::plain;
use super::{Format, GoesOn, ask, progress};
use crate::config::Config;

/// Arguments of `lode pull`.
#[derive(Debug, Args)]
pub(super) struct PullArguments {
    /// Name of the model; without a host it is at registry.ollama.ai, as `library/NAME:latest`
    model: String,
    /// Connect by HTTP without TLS
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    job: JobSettings,
    /// Format of the progress; `json` prints one document a line on standard output
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Arguments of `lode push`.
#[derive(Debug, Args)]
pub(super) struct PushArguments {
    /// Name of the model
    #[arg(add = ArgValueCompleter::new(super::completion::models))]
    model: String,
    /// Destination, if it differs from the name
    destination: Option<String>,
    /// Print the tensors that would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// Connect by HTTP without TLS
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    job: JobSettings,
    /// Format of the progress; `json` prints one document a line on standard output
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// A line of a pull or push: progress, or a layer of a dry run.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct TransferLine {
    pub(super) status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

pub(super) async fn pull(config: &Config, arguments: &PullArguments) -> Result<()> {
    let request = PullRequest {
        model: arguments.model.clone(),
        insecure: arguments.insecure,
        limit: arguments.job.limit,
        priority: arguments.job.priority.map(Into::into),
        stream: Some(true),
        ..PullRequest::default()
    };
    let client = Client::connect(config).await?;
    show(&client, "/api/pull", &request, Showing::of("pull", &arguments.job, arguments.format)).await
}

/// Pulls a model that a command needs and that is not in the store. If `asks` is true and there is
/// a terminal, it asks for confirmation first, because a mistyped name would be searched on the
/// network.
pub(super) async fn fetch_missing(client: &Client, name: &str, asks: bool) -> Result<()> {
    let request = ShowRequest { model: name.to_owned(), ..ShowRequest::default() };
    let Err(missing) = client.post::<ShowResponse>("/api/show", &request).await else { return Ok(()) };
    if !Refused::is_not_found(&missing) {
        return Err(missing);
    }
    let suggestion = client.suggestion(name).await;
    if asks && ask::is_possible() {
        let default = if suggestion.is_empty() { ask::Default::Yes } else { ask::Default::No };
        let question = format!("`{name}` is not in the store{suggestion}\nPull `{}`?", whole_name(name));
        ensure!(ask::yes(&question, default)?, "`{name}` is not in the store; `lode list` shows the models in it");
    } else {
        eprintln!("`{name}` is not in the store; pulling it");
    }
    let Err(error) = fetch(client, name).await else { return Ok(()) };
    bail!("model `{name}` is not in the store and could not be pulled: {error:#}{suggestion}")
}

/// Returns a name with the default registry and tag filled in.
fn whole_name(name: &str) -> String {
    name.parse::<ModelRef>().ok().and_then(|reference| reference.tag_key()).unwrap_or_else(|| name.to_owned())
}

/// Pulls a model that the command uses right away.
async fn fetch(client: &Client, name: &str) -> Result<()> {
    let request = PullRequest { model: name.to_owned(), stream: Some(true), ..PullRequest::default() };
    let bar = progress::bytes()?;
    // Without a handler of interrupts, which would stay for the rest of the command.
    let result = lines(client, client.download("/api/pull", &request).await?, &bar, Format::Table).await;
    bar.finish_and_clear();
    result
}

pub(super) async fn push(config: &Config, arguments: &PushArguments) -> Result<()> {
    let request = PushRequest {
        model: arguments.model.clone(),
        destination: arguments.destination.clone().unwrap_or_default(),
        dry_run: arguments.dry_run,
        insecure: arguments.insecure,
        limit: arguments.job.limit,
        priority: arguments.job.priority.map(Into::into),
        stream: Some(true),
        ..PushRequest::default()
    };
    let client = Client::connect(config).await?;
    show(&client, "/api/push", &request, Showing::of("push", &arguments.job, arguments.format)).await
}

/// Shows the progress of a job until it ends.
pub(super) async fn follow(client: &Client, id: u64, format: Format) -> Result<()> {
    let showing = Showing { what: "job", detach: false, format };
    show(client, "/api/lode/jobs/watch", &JobRequest { id }, showing).await
}

/// How a transfer is shown.
#[derive(Clone, Copy, Debug)]
struct Showing {
    /// `pull`, `push` or `job`.
    what: &'static str,
    /// Whether the command ends at once.
    detach: bool,
    format: Format,
}

impl Showing {
    fn of(what: &'static str, job: &JobSettings, format: Format) -> Self {
        Self { what, detach: job.detach, format }
    }
}

/// Sends a request and shows its lines until the transfer succeeds.
async fn show(client: &Client, path: &str, request: &impl Serialize, showing: Showing) -> Result<()> {
    let bar = progress::bytes()?;
    let shown = async |response: Response| {
        if let Some(job) = job_of(&response).filter(|_| showing.detach) {
            eprintln!("the {} runs as a job; `lode jobs` lists it, `lode cancel {job}` ends it", showing.what);
            println!("{job}");
            return Ok(());
        }
        lines(client, response, &bar, showing.format).await
    };
    let result = until_interrupted(client.download(path, request), showing.what, shown).await;
    bar.finish_and_clear();
    result
}

/// Waits for a job: `response` starts it, and `shown` shows its lines. If the user interrupts the
/// command, the job goes on.
pub(super) async fn until_interrupted(
    response: impl Future<Output = Result<Response>>,
    what: &str,
    shown: impl AsyncFnOnce(Response) -> Result<()>,
) -> Result<()> {
    // From here on, an interrupt does not end this process by itself.
    let mut interrupts = signal(SignalKind::interrupt())?;
    let job = OnceCell::new();
    let work = async {
        let response = response.await?;
        // A dry run has no job. This is the only place that sets it.
        let _ = job_of(&response).map(|id| job.set(id));
        shown(response).await
    };
    tokio::select! {
        result = work => result,
        _ = interrupts.recv() => Err(match job.get() {
            Some(id) => GoesOn(format!("the {what} goes on as job {id}; `lode jobs` lists it, `lode cancel {id}` ends it")),
            None => GoesOn(format!("interrupted; `lode jobs` shows whether the {what} has begun")),
        }
        .into()),
    }
}

fn job_of(response: &Response) -> Option<String> {
    Some(response.headers().get("lode-job")?.to_str().ok()?.to_owned())
}

/// Shows the lines of a response until the transfer succeeds.
async fn lines(client: &Client, response: Response, bar: &ProgressBar, format: Format) -> Result<()> {
    // Only the last line tells whether the transfer succeeded.
    let mut last = VecDeque::with_capacity(1);
    let told = client.lines_of(response, |line: TransferLine| {
        last.clear();
        last.push_back(line.status.clone());
        if format == Format::Json {
            println!("{}", serde_json::to_string(&line)?);
            return Ok(());
        }
        table(bar, &line);
        Ok(())
    });
    told.await?;
    let last = last.pop_back().unwrap_or_default();
    ensure!(last == "success", "the transfer broke off after `{last}`; run the same command again to resume");
    Ok(())
}

fn table(bar: &ProgressBar, line: &TransferLine) {
    match (&line.name, line.total, line.completed) {
        (Some(name), Some(size), None) => {
            bar.suspend(|| println!("{:8} {:>12}  {name}", line.status, content::text::size(size)));
        }
        (None, Some(total), Some(completed)) => {
            progress::advance(bar, plain(&line.status).into_owned(), total, completed);
        }
        _ => bar.suspend(|| eprintln!("{}", plain(&line.status))),
    }
}
