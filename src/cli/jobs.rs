//! `lode jobs`, `pause`, `resume`, `cancel` and `limit`: pulls, pushes and creates of the daemon.

use anyhow::{Result, ensure};
use api::lode::{
    BandwidthRequest, BandwidthResponse, JobChange, JobEntry, JobKind, JobPriority, JobRequest, JobState, JobsResponse,
};
use clap::Args;
use content::text::size;

use super::client::Client;
use super::job_settings::limit;
use super::text::{plain, relative, table};
use super::{Format, transfer};
use crate::config::Config;

/// Arguments of `lode jobs`.
#[derive(Debug, Args)]
pub(super) struct JobsArguments {
    /// Also list jobs that have ended
    #[arg(long, short)]
    all: bool,
    /// Show the progress of this job until it ends
    #[arg(long, value_name = "JOB", conflicts_with = "all")]
    follow: Option<u64>,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Arguments of `lode limit`.
#[derive(Debug, Args)]
pub(super) struct LimitArguments {
    /// Bytes per second, e.g. 10MB/s; `none` for no limit; `default` for the
    /// configured one
    rate: String,
    /// Limit this job only
    #[arg(long)]
    job: Option<u64>,
}

pub(super) async fn list(config: &Config, arguments: &JobsArguments) -> Result<()> {
    let client = Client::connect(config).await?;
    if let Some(id) = arguments.follow {
        return transfer::follow(&client, id, arguments.format).await;
    }
    let mut answer: JobsResponse = client.get("/api/lode/jobs").await?;
    if !arguments.all {
        answer.jobs.retain(|job| matches!(job.state, JobState::Running | JobState::Paused | JobState::Failed));
    }
    if arguments.format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
        return Ok(());
    }
    let rows: Vec<Vec<String>> = answer.jobs.iter().map(row).collect();
    table(&["JOB", "KIND", "MODEL", "STATE", "PROGRESS", "RATE", "PRIORITY", "CREATED"], &rows);
    if let Some(limit) = answer.limit {
        eprintln!("all transfers together are limited to {}/s", size(limit));
    }
    for job in &answer.jobs {
        if let Some(error) = &job.error {
            eprintln!(
                "job {} failed: {}; `lode resume {}` tries again, `lode cancel {}` removes it",
                job.id,
                plain(error),
                job.id,
                job.id
            );
        }
    }
    Ok(())
}

fn row(job: &JobEntry) -> Vec<String> {
    let model = match &job.destination {
        Some(destination) => format!("{} to {destination}", job.model),
        None => job.model.clone(),
    };
    let progress = match job.total {
        0 => job.status.clone(),
        total => {
            let percent = (job.completed as f64 * 100.0 / total as f64).floor();
            format!("{percent}% of {}", size(total))
        }
    };
    let rate = match (job.state, job.limit) {
        (JobState::Running, Some(limit)) => format!("{}/s (limit {}/s)", size(job.rate), size(limit)),
        (JobState::Running, None) => format!("{}/s", size(job.rate)),
        (_, Some(limit)) => format!("(limit {}/s)", size(limit)),
        _ => "-".to_owned(),
    };
    vec![
        job.id.to_string(),
        kind(job.kind).to_owned(),
        model,
        state(job.state).to_owned(),
        progress,
        rate,
        priority(job.priority).to_owned(),
        relative(&job.created),
    ]
}

fn kind(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Pull => "pull",
        JobKind::Push => "push",
        JobKind::Create => "create",
    }
}

fn state(state: JobState) -> &'static str {
    match state {
        JobState::Running => "running",
        JobState::Paused => "paused",
        JobState::Done => "done",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}

fn priority(priority: JobPriority) -> &'static str {
    match priority {
        JobPriority::Low => "low",
        JobPriority::Normal => "normal",
        JobPriority::High => "high",
    }
}

/// Pauses, resumes or cancels jobs.
pub(super) async fn change(config: &Config, action: &str, jobs: &[u64]) -> Result<()> {
    let client = Client::connect(config).await?;
    let mut failed = 0;
    for id in jobs {
        let (path, request) = (format!("/api/lode/jobs/{action}"), JobRequest { id: *id });
        match client.post::<JobEntry>(&path, &request).await {
            Ok(job) => eprintln!("job {} ({} {}) is {}", job.id, kind(job.kind), plain(&job.model), state(job.state)),
            Err(error) => {
                failed += 1;
                eprintln!("{error:#}");
            }
        }
    }
    ensure!(failed == 0, "{failed} of {} jobs could not be changed", jobs.len());
    Ok(())
}

pub(super) async fn set_limit(config: &Config, arguments: &LimitArguments) -> Result<()> {
    let is_default = arguments.rate == "default";
    ensure!(!(is_default && arguments.job.is_some()), "a job has no default limit; `none` removes its limit");
    let asked = if is_default { None } else { Some(limit(&arguments.rate)?) };
    let client = Client::connect(config).await?;
    if let Some(id) = arguments.job {
        let change = JobChange { id, limit: asked, priority: None };
        let job: JobEntry = client.post("/api/lode/jobs/change", &change).await?;
        eprintln!("job {id}: {}", told(job.limit));
        return Ok(());
    }
    let set: BandwidthResponse = client.post("/api/lode/bandwidth", &BandwidthRequest { limit: asked }).await?;
    eprintln!("all transfers together: {}", told(set.limit));
    Ok(())
}

fn told(limit: Option<u64>) -> String {
    limit.map_or_else(|| "no limit".to_owned(), |limit| format!("at most {}/s", size(limit)))
}
