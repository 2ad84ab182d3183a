//! `lode tier`: the tier of the store, to which rarely used blobs go.

use anyhow::{Result, bail, ensure};
use api::lode::{TierModel, TierMoveReport, TierMoveRequest, TierRecallReport, TierRecallRequest, TierResponse};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use content::text::size;

use super::client::Client;
use super::fsck::steps;
use super::text::{plain, relative, table};
use super::{Format, completion};
use crate::config::Config;
use crate::time_span::{self, seconds};

/// Arguments of `lode tier`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct TierArguments {
    #[command(subcommand)]
    command: Option<TierCommand>,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Subcommand)]
enum TierCommand {
    /// Move blobs of models to the tier
    Move(MoveArguments),
    /// Copy the blobs of models back to the disk
    Recall(RecallArguments),
}

#[derive(Debug, Args)]
struct MoveArguments {
    /// Models to move, however recently they were used; blobs that other models have, too, stay
    #[arg(add = ArgValueCompleter::new(completion::models), required_unless_present = "after")]
    models: Vec<String>,
    /// Move models that were not used for this time, e.g. 7d
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    after: Option<u64>,
    /// Only report what would move
    #[arg(long)]
    dry_run: bool,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Args)]
struct RecallArguments {
    #[arg(add = ArgValueCompleter::new(completion::models), required_unless_present = "all")]
    models: Vec<String>,
    /// Copy all blobs back, to stop using the tier
    #[arg(long, conflicts_with = "models")]
    all: bool,
}

pub(super) async fn run(config: &Config, arguments: TierArguments) -> Result<()> {
    match arguments.command {
        None => status(config, arguments.format).await,
        Some(TierCommand::Move(arguments)) => move_blobs(config, arguments).await,
        Some(TierCommand::Recall(RecallArguments { models, all })) => {
            let request = TierRecallRequest { models, all };
            let report: TierRecallReport = steps(config, "/api/lode/tier/recall", &request).await?;
            eprintln!("copied {} back", size(report.bytes));
            Ok(())
        }
    }
}

async fn status(config: &Config, format: Format) -> Result<()> {
    let status: TierResponse = Client::connect(config).await?.get("/api/lode/tier").await?;
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        let budget = status.disk.map_or_else(|| "no maximum".to_owned(), |disk| format!("of {}", size(disk)));
        let after =
            status.after.map_or_else(|| "never".to_owned(), |after| format!("after {}", time_span::text(after)));
        for (what, value) in [
            ("tier", plain(&status.location).into_owned()),
            ("unused models move", after),
            ("on the disk", format!("{} ({budget})", size(status.disk_bytes))),
            ("in the tier", format!("{} in {} blobs", size(status.tier_bytes), status.tier_blobs)),
            ("only in the tier", format!("{} in {} blobs", size(status.moved_bytes), status.moved_blobs)),
        ] {
            println!("{what:<20} {value}");
        }
    }
    match &status.problem {
        Some(problem) => bail!("the tier cannot be used: {}", plain(problem)),
        None => Ok(()),
    }
}

async fn move_blobs(config: &Config, arguments: MoveArguments) -> Result<()> {
    let MoveArguments { models, after, dry_run, format } = arguments;
    let request = TierMoveRequest { after, models, dry_run };
    let report: TierMoveReport = steps(config, "/api/lode/tier/move", &request).await?;
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else if !report.models.is_empty() {
        table(&["NAME", "SIZE", "USED"], &report.models.iter().map(row).collect::<Vec<_>>());
    }
    if dry_run {
        eprintln!("{} blobs ({}) would move", report.planned_blobs, size(report.planned_bytes));
        return Ok(());
    }
    eprintln!("moved {} blobs ({}), sent {}", report.blobs, size(report.bytes), size(report.sent));
    if report.in_use > 0 {
        eprintln!("{} blobs stay because they are in use", report.in_use);
    }
    for failed in &report.failed {
        eprintln!("{}", plain(failed));
    }
    ensure!(report.failed.is_empty(), "some blobs could not move, see above");
    Ok(())
}

fn row(model: &TierModel) -> Vec<String> {
    let used = model.used.as_deref().map_or_else(|| "never".to_owned(), relative);
    vec![plain(&model.name).into_owned(), size(model.bytes), used]
}
