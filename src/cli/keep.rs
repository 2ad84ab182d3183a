//! `lode gc` and `lode prune`.

use std::io::IsTerminal;

use anyhow::{Result, bail, ensure};
use api::lode::{GcRequest, GcResponse, Leased, PruneRequest, PruneResponse, PutOff};
use clap::Args;

use super::ask;
use super::client::Client;
use super::text::{plain, relative, short, table};
use crate::config::Config;
use crate::time_span::seconds;
use content::text::size;

/// Arguments of `lode prune`.
#[derive(Debug, Args)]
pub(super) struct PruneArguments {
    /// Also remove models and untagged manifests that were not used for this time, e.g. 30d; pinned
    /// models stay
    #[arg(long, value_parser = seconds)]
    older_than: Option<u64>,
    /// Only report the data that would be removed
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

/// Fails if blobs were left for a later collection, so that scripts notice it.
pub(super) async fn gc(config: &Config, dry_run: bool) -> Result<()> {
    let done: GcResponse = Client::connect(config).await?.post("/api/lode/gc", &GcRequest { dry_run }).await?;
    tell(&done, dry_run)
}

fn tell(done: &GcResponse, dry_run: bool) -> Result<()> {
    let (blobs, bytes) = (done.blobs, size(done.bytes));
    if dry_run {
        eprintln!("{blobs} blobs ({bytes}) would be deleted");
    } else {
        eprintln!("deleted {blobs} blobs ({bytes})");
    }
    if let Some(Leased { blobs, bytes, until }) = &done.leased {
        let (bytes, until) = (size(*bytes), plain(until));
        eprintln!(
            "{blobs} blobs ({bytes}) that no model refers to are kept until {until} at the latest: uploads, and what pulls have begun"
        );
    }
    let Some(PutOff { blobs, bytes, in_use, reasons }) = &done.put_off else { return Ok(()) };
    for reason in reasons {
        eprintln!("{}", plain(reason));
    }
    let left = format!("{blobs} blobs ({}) without a known reference are left for a later collection", size(*bytes));
    match (blobs, in_use) {
        (0, _) => bail!("some documents could not be read, see above; they may refer to further blobs"),
        (_, true) => bail!("{left}: another request is adding or reading some of them; try again later"),
        (_, false) => bail!("{left}: the documents named above may refer to them"),
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
    let count = plan.models.len() + plan.linked.len();
    if count > 0 && !arguments.yes {
        confirm(count)?;
    }
    let done: PruneResponse = client.post(PATH, &PruneRequest { dry_run: false, ..ask }).await?;
    done.collected.map_or(Ok(()), |collected| tell(&collected, false))
}

fn describe(plan: &PruneResponse) {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for model in &plan.models {
        rows.push(vec![model.name.clone(), "model".to_owned(), format!("used {}", relative(&model.used))]);
    }
    for linked in &plan.linked {
        rows.push(vec![linked.name.clone(), "manifest".to_owned(), format!("used {}", relative(&linked.used))]);
    }
    for model in &plan.versions {
        rows.extend(
            model.digests.iter().map(|digest| vec![model.name.clone(), "earlier version".to_owned(), short(digest)]),
        );
    }
    if plan.ingests > 0 {
        rows.push(vec![format!("{} transfers", plan.ingests), "abandoned".to_owned(), size(plan.ingest_bytes)]);
    }
    if rows.is_empty() {
        eprintln!("there is nothing to remove");
    } else {
        table(&["NAME", "WHAT", ""], &rows);
    }
}

fn confirm(count: usize) -> Result<()> {
    if !std::io::stdin().is_terminal() {
        bail!("{count} models would be removed; pass --yes to confirm");
    }
    ensure!(ask::yes(&format!("Remove {count} models?"), ask::Default::No)?, "nothing was removed");
    Ok(())
}
