//! `lode registry`: a registry over object storage.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail, ensure};
use api::lode::{ReducedRepository, RetentionRequest, RetentionResponse};
use bucket::{CollectOptions, Location};
use clap::{Args, Subcommand};
use content::text::size;
use daemon::replica::{Collection, ReplicaSettings};
use registry::server::retention::Execution;
use registry::server::{CopiedRegistries, Redirects};
use transfer::{SyncExecution, SyncedTag, TagOutcome};

use super::client::Client;
use crate::config::{Config, registry_rules};
use crate::time_span::seconds;

/// Arguments of `lode registry`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct RegistryArguments {
    #[command(subcommand)]
    command: Option<RegistryCommand>,
    #[command(flatten)]
    storage: StorageArgument,
    #[command(flatten)]
    rules: RulesArgument,
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

#[derive(Debug, Args)]
struct RulesArgument {
    /// The file with the rules of the registry (default: the variable `LODE_REGISTRY_RULES`)
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
}

/// Arguments of the commands that execute rules once.
#[derive(Debug, Args)]
struct RulesRun {
    #[command(flatten)]
    storage: StorageArgument,
    #[command(flatten)]
    rules: RulesArgument,
    /// Only list the tags and manifests that would be copied or removed
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Subcommand)]
enum RegistryCommand {
    /// Copy tags of other registries that the rules name
    Sync(RulesRun),
    /// Remove tags and manifests that no rule keeps
    Retain(RulesRun),
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

/// Serves until the process is told to stop, or executes a command on the storage.
pub(super) fn run(config: Config, arguments: RegistryArguments) -> Result<()> {
    let _telemetry = crate::telemetry::start(&config.log, config.log_format, &config.traces);
    match arguments.command {
        Some(RegistryCommand::Gc { storage, dry_run, keep_blobs, keep_data, keep_uploads }) => {
            let (link_life, data_life, upload_life) = (keep_blobs, keep_data, keep_uploads);
            let options = CollectOptions { link_life, data_life, upload_life, now: SystemTime::now() };
            let location = config.storage.location(storage.storage.as_deref())?;
            collect(&location, dry_run, &options)
        }
        Some(RegistryCommand::Retain(RulesRun { storage, rules, dry_run })) => {
            let location = config.storage.named(storage.storage.as_deref())?;
            let retained = match location {
                Some(location) => retain(&location, rules.rules.or(config.rules), dry_run)?,
                None => ask_daemon(&config, &rules, dry_run)?,
            };
            report(&retained, dry_run)
        }
        Some(RegistryCommand::Sync(RulesRun { storage, rules, dry_run })) => {
            let location = config.storage.location(storage.storage.as_deref())?;
            sync(config, &location, rules, dry_run)
        }
        None => serve(config, arguments),
    }
}

fn serve(mut config: Config, arguments: RegistryArguments) -> Result<()> {
    let storage = config.storage.location(arguments.storage.storage.as_deref())?;
    config.rules = arguments.rules.rules.or(config.rules);
    let settings = config.into_settings()?;
    let redirects =
        if arguments.no_redirects { Redirects::Never } else { Redirects::Except(arguments.no_redirect_for) };
    let copied = CopiedRegistries::new(&settings.pull_through.unwrap_or_default());
    let copied = copied.map_err(|reason| anyhow!("LODE_PULL_THROUGH: {reason}"))?;
    Ok(daemon::replica::run(ReplicaSettings {
        address: settings.address,
        tls: settings.tls,
        registry: settings.registry,
        policy: settings.policy,
        registries: settings.registries,
        copied,
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

fn retain(location: &Location, rules: Option<PathBuf>, dry_run: bool) -> Result<RetentionResponse> {
    if location.is_memory() {
        bail!("a registry in memory ends with its process; there is nothing to remove");
    }
    let rules = rules.context("no rules are named; give `--rules FILE`, or set LODE_REGISTRY_RULES")?;
    let policy = registry_rules::read(&rules)?.0;
    let execution = if dry_run { Execution::Report } else { Execution::Remove };
    let retained = daemon::replica::retain(location, &policy, execution)?;
    Ok(daemon::retention_response(&policy.rules, &retained))
}

/// Prints a line for each tag that is copied or would be, and a message for each failure.
fn sync(mut config: Config, location: &Location, rules: RulesArgument, dry_run: bool) -> Result<()> {
    if location.is_memory() {
        bail!("a registry in memory ends with its process; copies to it are lost");
    }
    config.rules = rules.rules.or(config.rules);
    ensure!(config.rules.is_some(), "no rules are named; give `--rules FILE`, or set LODE_REGISTRY_RULES");
    let settings = config.into_settings()?;
    ensure!(!settings.policy.sync.is_empty(), "the rules name no other registries; add `[[sync]]`");
    let execution = if dry_run { SyncExecution::Report } else { SyncExecution::Copy };
    let (mut copied, mut unchanged, mut failed) = (0, 0, 0);
    let each = |SyncedTag { repository, tag, outcome }| match outcome {
        Ok(TagOutcome::Unchanged) => unchanged += 1,
        Ok(TagOutcome::Copied | TagOutcome::Differs) => {
            copied += 1;
            println!("{repository}:{tag}");
        }
        Err(error) => {
            failed += 1;
            eprintln!("{repository}:{tag}: {error:#}");
        }
    };
    daemon::replica::sync(location, &settings.registries, &settings.policy, execution, each)?;
    let done = if dry_run { "would be copied" } else { "copied" };
    eprintln!("{copied} tags {done}, {unchanged} are the same, {failed} failed");
    ensure!(failed == 0, "{failed} tags were not copied");
    Ok(())
}

/// Without a storage, the daemon applies its own rules to its own registry.
fn ask_daemon(config: &Config, rules: &RulesArgument, dry_run: bool) -> Result<RetentionResponse> {
    if rules.rules.is_some() {
        bail!("`--rules` needs `--storage`; without a storage, the daemon applies its own LODE_REGISTRY_RULES");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        Client::connect(config).await?.post("/api/lode/retention", &RetentionRequest { dry_run }).await
    })
}

/// Prints a line for each tag and manifest that no rule keeps, and the number of removed ones.
fn report(retained: &RetentionResponse, dry_run: bool) -> Result<()> {
    if !retained.has_rules {
        eprintln!("the rules keep everything; `untagged` and `[[repository.keep]]` of a repository remove something");
        return Ok(());
    }
    for ReducedRepository { repository, tags, manifests, .. } in &retained.repositories {
        for tag in tags {
            println!("{repository}:{tag}");
        }
        for digest in manifests {
            println!("{repository}@{digest}");
        }
    }
    let sum = |count: fn(&ReducedRepository) -> u64| retained.repositories.iter().map(count).sum::<u64>();
    if dry_run {
        let (tags, manifests) = (sum(|one| one.tags.len() as u64), sum(|one| one.manifests.len() as u64));
        eprintln!("{tags} tags and {manifests} manifests without a tag would be removed");
    } else {
        let (tags, manifests) = (sum(|one| one.removed_tags), sum(|one| one.removed_manifests));
        eprintln!("removed {tags} tags and {manifests} manifests without a tag; a collection frees their blobs");
    }
    ensure!(
        retained.failures.is_empty(),
        "repositories could not be read or changed: {}",
        retained.failures.join("; ")
    );
    Ok(())
}
