//! `lode fsck`, `lode repair` and `lode own`.

use anyhow::{Context, Result, bail};
use api::lode::{FsckReport, FsckRequest, OwnReport, OwnRequest, Problem, RepairReport, RepairRequest, Sample, Step};
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::Client;
use super::text::plain;
use super::{Format, progress};
use crate::config::Config;
use crate::time_span::seconds;
use content::text::size;

/// Arguments of `lode fsck`.
#[derive(Debug, Args)]
pub(super) struct FsckArguments {
    /// Read only some blobs, the least recently read first: a number (`100`) or a percentage
    /// (`10%`)
    #[arg(long, value_parser = sample, conflicts_with = "since")]
    sample: Option<Sample>,
    /// Read only blobs that were not found intact within this time, e.g. 7d
    #[arg(long, value_parser = seconds)]
    since: Option<u64>,
    /// Rebuild the index first
    #[arg(long)]
    rebuild: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

fn sample(text: &str) -> Result<Sample, String> {
    let (digits, make): (&str, fn(u64) -> Sample) = match text.strip_suffix('%') {
        Some(digits) => (digits, Sample::Percent),
        None => (text, Sample::Count),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is neither a number nor a percentage"))?;
    match make(number) {
        Sample::Percent(0 | 101..) | Sample::Count(0) => Err(format!("`{text}` is out of range")),
        sample => Ok(sample),
    }
}

/// Fails if any problem is found, so that scripts notice it.
pub(super) async fn run(config: &Config, arguments: &FsckArguments) -> Result<()> {
    let request =
        FsckRequest { sample: arguments.sample, since: arguments.since, model: None, rebuild: arguments.rebuild };
    let report: FsckReport = steps(config, "/api/lode/fsck", &request).await?;
    match arguments.format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        Format::Table => print(&report.problems),
    }
    eprintln!("looked at {} models, read {} blobs ({})", report.models, report.blobs, size(report.bytes));
    match report.problems.len() {
        0 => Ok(()),
        1 => bail!("1 problem was found; `lode repair` fetches damaged blobs again"),
        count => bail!("{count} problems were found; `lode repair` fetches damaged blobs again"),
    }
}

pub(super) async fn repair(config: &Config, model: Option<String>) -> Result<()> {
    let report: RepairReport = steps(config, "/api/lode/repair", &RepairRequest { model }).await?;
    for blob in &report.repaired {
        println!("{} {} of '{}' ({})", blob.digest, blob.layer, blob.model, size(blob.bytes));
    }
    print(&report.failed);
    eprintln!("read {} blobs, fetched {} of them again", report.blobs, report.repaired.len());
    match report.failed.len() {
        0 => Ok(()),
        count => bail!("{count} blobs could not be repaired"),
    }
}

/// Copies the tensors of an adopted model into the store.
pub(super) async fn own(config: &Config, model: String) -> Result<()> {
    let report: OwnReport = steps(config, "/api/lode/own", &OwnRequest { model }).await?;
    match report.blobs {
        0 => eprintln!("all tensors are in the store already"),
        blobs => eprintln!("copied {blobs} tensor blobs ({}) into the store", size(report.bytes)),
    }
    Ok(())
}

fn print(problems: &[Problem]) {
    for problem in problems {
        println!("{}", plain(&problem.error));
    }
}

/// Runs a long operation of the daemon, shows its progress, and returns its report.
pub(super) async fn steps<T: DeserializeOwned>(config: &Config, path: &str, request: &impl Serialize) -> Result<T> {
    let client = Client::connect(config).await?;
    let bar = progress::bytes()?;
    let mut result = None;
    let told = client.lines(path, request, |step: Step<T>| {
        match (step.total, step.completed) {
            (Some(total), Some(completed)) => {
                progress::advance(&bar, plain(&step.status).into_owned(), total, completed);
            }
            _ if step.report.is_none() => bar.suspend(|| eprintln!("{}", plain(&step.status))),
            _ => {}
        }
        result = step.report.or(result.take());
        Ok(())
    });
    let told = told.await;
    bar.finish_and_clear();
    told?;
    result.context("the daemon broke off before it was done")
}
