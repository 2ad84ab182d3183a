//! `lode move`: moves models to a root of the store.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use api::lode::{MoveReport, MoveRequest, RelocatedModel};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use content::text::size;

use super::fsck::steps;
use super::text::{plain, relative, table};
use super::{Format, completion};
use crate::config::Config;
use crate::time_span::seconds;

/// Arguments of `lode move`.
#[derive(Debug, Args)]
pub(super) struct MoveArguments {
    /// The models to move
    #[arg(add = ArgValueCompleter::new(completion::models), required_unless_present = "unused", conflicts_with = "unused")]
    models: Vec<String>,
    /// Move all models that were not used for this time, e.g. 30d; pinned and loaded ones stay
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    unused: Option<u64>,
    /// Folder of the store to move to: one of `LODE_ROOTS`
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
    /// Make a store in the folder if it has none
    #[arg(long)]
    create: bool,
    /// Only list the models that would move
    #[arg(long)]
    dry_run: bool,
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(super) async fn run(config: &Config, arguments: &MoveArguments) -> Result<()> {
    let to = std::path::absolute(&arguments.to)?;
    let request = MoveRequest {
        to: to.to_str().with_context(|| format!("the path `{}` is not UTF-8", to.display()))?.to_owned(),
        models: arguments.models.clone(),
        unused: arguments.unused,
        dry_run: arguments.dry_run,
        create: arguments.create,
    };
    let report: MoveReport = steps(config, "/api/lode/move", &request).await?;
    if arguments.format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return ensure_all_moved(&report);
    }
    let row = |model: &RelocatedModel| vec![plain(&model.name).into_owned(), size(model.bytes), relative(&model.used)];
    table(&["NAME", "SIZE", "USED"], &report.models.iter().map(row).collect::<Vec<_>>());
    for reason in &report.failed {
        eprintln!("{}", plain(reason));
    }
    match (report.models.len(), arguments.dry_run) {
        (0, _) if report.failed.is_empty() => eprintln!("no model was unused for that long"),
        (count, true) => eprintln!("{count} models would move"),
        (count, false) => eprintln!("{count} models moved, {} were copied", size(report.bytes)),
    }
    ensure_all_moved(&report)
}

fn ensure_all_moved(report: &MoveReport) -> Result<()> {
    ensure!(report.failed.is_empty(), "{} models could not move", report.failed.len());
    Ok(())
}
