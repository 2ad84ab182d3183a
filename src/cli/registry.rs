//! `lode registry`: a registry over object storage.

use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use bucket::{CollectOptions, Location};
use clap::{Args, Subcommand};
use content::text::size;
use daemon::replica::{Collection, ReplicaSettings};
use registry::server::Redirects;

use super::text::seconds;
use crate::config::Config;

/// Arguments of `lode registry`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct RegistryArguments {
    #[command(subcommand)]
    command: Option<RegistryCommand>,
    #[command(flatten)]
    storage: StorageArgument,
    /// Send all bytes through this process, not by links to the storage
    #[arg(long, conflicts_with = "no_redirect_for")]
    no_redirects: bool,
    /// Send no links to clients whose `User-Agent` begins with this text
    #[arg(long, value_name = "PREFIX")]
    no_redirect_for: Vec<String>,
    /// Collect garbage at this interval, e.g. 24h
    #[arg(long, value_name = "TIME", value_parser = interval)]
    collect_every: Option<Duration>,
    /// How long running requests may continue when the registry is stopped
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "30s")]
    drain: Duration,
}

fn span(text: &str) -> std::result::Result<Duration, String> {
    seconds(text).map(Duration::from_secs)
}

fn interval(text: &str) -> std::result::Result<Duration, String> {
    match span(text)? {
        Duration::ZERO => Err("expected more than no time".to_owned()),
        interval => Ok(interval),
    }
}

#[derive(Debug, Args)]
struct StorageArgument {
    /// The bucket: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or
    /// `memory://` (default: the variable `LODE_REGISTRY_STORAGE`)
    #[arg(long, value_name = "URL")]
    storage: Option<String>,
}

#[derive(Debug, Subcommand)]
enum RegistryCommand {
    /// Remove blobs that no manifest refers to, and the rest of interrupted uploads
    Gc {
        #[command(flatten)]
        storage: StorageArgument,
        /// Only report the blobs that would be removed
        #[arg(long)]
        dry_run: bool,
        /// How long blobs stay that no manifest refers to; less than 12h only while no client
        /// pushes
        #[arg(long, value_name = "TIME", value_parser = span, default_value = "24h")]
        keep_blobs: Duration,
        /// How long the data of removed blobs stays; less than 1h only while no client pulls
        #[arg(long, value_name = "TIME", value_parser = span, default_value = "70m")]
        keep_data: Duration,
        /// How long unfinished uploads stay; less than 1h only while no client pushes
        #[arg(long, value_name = "TIME", value_parser = span, default_value = "24h")]
        keep_uploads: Duration,
    },
}

/// Serves until the process is told to stop, or collects garbage once.
pub(super) fn run(config: Config, arguments: RegistryArguments) -> Result<()> {
    crate::telemetry::start(&config.log, config.log_format);
    if let Some(RegistryCommand::Gc { storage, dry_run, keep_blobs, keep_data, keep_uploads }) = arguments.command {
        let now = SystemTime::now();
        let options = CollectOptions { link_life: keep_blobs, data_life: keep_data, upload_life: keep_uploads, now };
        let location = config.storage.location(storage.storage.as_deref())?;
        return collect(&location, dry_run, &options);
    }
    let storage = config.storage.location(arguments.storage.storage.as_deref())?;
    let settings = config.into_settings()?;
    let redirects =
        if arguments.no_redirects { Redirects::Never } else { Redirects::Except(arguments.no_redirect_for) };
    Ok(daemon::replica::run(ReplicaSettings {
        address: settings.address,
        tls: settings.tls,
        registry: settings.registry,
        storage,
        redirects,
        collect_every: arguments.collect_every,
        drain: arguments.drain,
    })?)
}

fn collect(location: &Location, dry_run: bool, options: &CollectOptions) -> Result<()> {
    if location.is_memory() {
        bail!("a registry in memory ends with its process; there is nothing to collect");
    }
    let collection = if dry_run { Collection::Report } else { Collection::Remove };
    let done = daemon::replica::collect(location, collection, options)?;
    let (removed, bytes) = (done.removed, size(done.removed_bytes));
    if dry_run {
        eprintln!("{removed} of {} blobs ({bytes}) would be removed", done.blobs);
    } else {
        eprintln!("removed {removed} of {} blobs ({bytes}), and {} expired uploads", done.blobs, done.uploads);
        eprintln!("deleted the data of {} removed blobs; data stays until links to it have expired", done.deleted);
    }
    Ok(())
}
