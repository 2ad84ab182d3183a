//! `lode gc` and `lode prune`.

use std::io::{IsTerminal, Write};

use anyhow::{Result, bail};
use api::lode::{GcRequest, GcResponse, PruneRequest, PruneResponse};
use clap::Args;

use super::client::Client;
use super::text::{relative, seconds, short, size, table};
use crate::config::Config;

/// Arguments of `lode prune`.
#[derive(Debug, Args)]
pub(super) struct PruneArguments {
    /// Remove models too that were not used for so long, e.g. 30d; pinned ones stay
    #[arg(long, value_parser = seconds)]
    older_than: Option<u64>,
    /// Only tell what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before models are removed
    #[arg(short, long)]
    yes: bool,
}

pub(super) async fn gc(config: &Config, dry_run: bool) -> Result<()> {
    let done: GcResponse = Client::connect(config).await?.post("/api/lode/gc", &GcRequest { dry_run }).await?;
    tell(&done, dry_run);
    Ok(())
}

fn tell(done: &GcResponse, dry_run: bool) {
    let (blobs, bytes) = (done.blobs, size(done.bytes));
    match (done.deferred, dry_run) {
        (true, _) => eprintln!("nothing was deleted: a pull, create or load is under way; try again later"),
        (false, true) => eprintln!("{blobs} blobs ({bytes}) would be deleted"),
        (false, false) => eprintln!("deleted {blobs} blobs ({bytes})"),
    }
}

pub(super) async fn prune(config: &Config, arguments: &PruneArguments) -> Result<()> {
    const PATH: &str = "/api/lode/prune";
    let client = Client::connect(config).await?;
    let ask = PruneRequest { dry_run: true, older_than: arguments.older_than };
    let plan: PruneResponse = client.post(PATH, &ask).await?;
    describe(&plan);
    if arguments.dry_run {
        return Ok(());
    }
    if !plan.models.is_empty() && !arguments.yes {
        confirm(plan.models.len())?;
    }
    let done: PruneResponse = client.post(PATH, &PruneRequest { dry_run: false, ..ask }).await?;
    match &done.collected {
        Some(collected) if collected.deferred => {
            eprintln!("names were removed; their blobs go when the pull, create or load under way is done");
        }
        Some(collected) => tell(collected, false),
        None => {}
    }
    Ok(())
}

fn describe(plan: &PruneResponse) {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for model in &plan.models {
        rows.push(vec![model.name.clone(), "model".to_owned(), format!("used {}", relative(&model.used))]);
    }
    for model in &plan.versions {
        rows.extend(
            model.digests.iter().map(|digest| vec![model.name.clone(), "earlier version".to_owned(), short(digest)]),
        );
    }
    if plan.ingests > 0 {
        rows.push(vec![
            format!("{} transfers", plan.ingests),
            "nobody goes on with".to_owned(),
            size(plan.ingest_bytes),
        ]);
    }
    if rows.is_empty() {
        eprintln!("there is nothing to remove");
    } else {
        table(&["NAME", "WHAT", ""], &rows);
    }
}

fn confirm(count: usize) -> Result<()> {
    if !std::io::stdin().is_terminal() {
        bail!("{count} models would be removed; say --yes to do so without being asked");
    }
    eprint!("Remove {count} models? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("nothing was removed");
    }
    Ok(())
}
