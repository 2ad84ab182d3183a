//! `lode pull` and `lode push`.

use std::collections::VecDeque;

use anyhow::{Result, ensure};
use api::ollama::{PullRequest, PushRequest};
use clap::Args;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::Format;
use super::client::Client;
use super::text::plain;
use crate::config::Config;

/// Arguments of `lode pull`.
#[derive(Debug, Args)]
pub(super) struct PullArguments {
    /// Name of the model, with the registry's host before it where it is not the default one
    model: String,
    /// HTTP without TLS
    #[arg(long)]
    insecure: bool,
    /// How progress is written; with `json` a line each, on standard output
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Arguments of `lode push`.
#[derive(Debug, Args)]
pub(super) struct PushArguments {
    /// Name of the model
    model: String,
    /// Where it goes, where that is not its name
    destination: Option<String>,
    /// Print which tensors would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// HTTP without TLS
    #[arg(long)]
    insecure: bool,
    /// How progress is written; with `json` a line each, on standard output
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// A line of either: progress, or a layer of a dry run.
#[derive(Debug, Deserialize, Serialize)]
struct Line {
    status: String,
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
        stream: Some(true),
        ..PullRequest::default()
    };
    let client = Client::connect(config).await?;
    show(&client, "/api/pull", &request, arguments.format).await
}

/// Pulls a model that is to be used at once.
pub(super) async fn fetch(client: &Client, name: &str) -> Result<()> {
    let request = PullRequest { model: name.to_owned(), stream: Some(true), ..PullRequest::default() };
    show(client, "/api/pull", &request, Format::Table).await
}

pub(super) async fn push(config: &Config, arguments: &PushArguments) -> Result<()> {
    let request = PushRequest {
        model: arguments.model.clone(),
        destination: arguments.destination.clone().unwrap_or_default(),
        dry_run: arguments.dry_run,
        insecure: arguments.insecure,
        stream: Some(true),
        ..PushRequest::default()
    };
    let client = Client::connect(config).await?;
    show(&client, "/api/push", &request, arguments.format).await
}

/// Sends a request and shows its lines until it has ended well.
async fn show(client: &Client, path: &str, request: &impl Serialize, format: Format) -> Result<()> {
    let bar = ProgressBar::new(0);
    bar.set_style(
        ProgressStyle::with_template("{msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")?
            .progress_chars("=> "),
    );
    // Only the last line says whether it ended well.
    let mut last = VecDeque::with_capacity(1);
    let told = client.lines(path, request, |line: Line| {
        last.clear();
        last.push_back(line.status.clone());
        if format == Format::Json {
            println!("{}", serde_json::to_string(&line)?);
            return Ok(());
        }
        table(&bar, &line);
        Ok(())
    });
    let result = told.await;
    bar.finish_and_clear();
    result?;
    let last = last.pop_back().unwrap_or_default();
    ensure!(last == "success", "the transfer broke off after `{last}`; the same command goes on from there");
    Ok(())
}

fn table(bar: &ProgressBar, line: &Line) {
    match (&line.name, line.total, line.completed) {
        (Some(name), Some(size), None) => {
            bar.suspend(|| println!("{:8} {:>12}  {name}", line.status, HumanBytes(size).to_string()));
        }
        (None, Some(total), Some(completed)) => {
            bar.set_length(total);
            bar.set_message(plain(&line.status).into_owned());
            bar.set_position(completed);
        }
        _ => bar.suspend(|| eprintln!("{}", plain(&line.status))),
    }
}
