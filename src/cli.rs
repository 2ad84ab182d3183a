//! The command line: each command is an HTTP client of the daemon.
//!
//! Data goes to standard output, messages go to standard error. Exit codes: 0 success, 1 failure, 2
//! wrong usage, 130 interrupted.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the command line prints its results")]

mod adapter;
mod adopt;
mod archive;
mod ask;
mod chat;
mod client;
mod completion;
mod create;
mod diff;
mod doctor;
mod export;
mod fsck;
mod help;
mod htpasswd;
mod interactive;
mod job_settings;
mod jobs;
mod keep;
mod key;
mod launch;
mod list;
mod login;
mod manage;
mod password;
mod perplexity;
mod pictures;
mod pipe;
mod plan;
mod prefetch;
mod progress;
mod quiet;
mod registry;
mod relocate;
mod run;
mod search;
mod serve;
mod show;
mod text;
mod tier;
mod transfer;
mod typesetter;
mod ui;
mod usage;
mod versions;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use crate::config::Config;

/// A model registry and content-addressed tensor store.
#[derive(Debug, Parser)]
#[command(version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Human-readable table.
    #[default]
    Table,
    /// The JSON document of the API.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon in the foreground
    #[command(alias = "start")]
    Serve,
    /// Create a model from a Modelfile, a GGUF file or a model folder
    Create(create::CreateArguments),
    /// Use models of other programs, or files, where they are
    Adopt(adopt::AdoptArguments),
    /// Run a model: one answer to PROMPT, or an interactive session
    Run(run::RunArguments),
    /// Start a coding agent with a model
    Launch(launch::LaunchArguments),
    /// Pull a model from a registry
    Pull(transfer::PullArguments),
    /// Make other daemons pull models
    Prefetch(prefetch::PrefetchArguments),
    /// Search registries and the hub for models
    Search(search::SearchArguments),
    /// Push a model to a registry
    Push(transfer::PushArguments),
    /// List pulls, pushes and creates of the daemon
    Jobs(jobs::JobsArguments),
    /// Stop jobs until they are resumed
    Pause {
        #[arg(required = true, value_name = "JOB")]
        jobs: Vec<u64>,
    },
    /// Go on with paused or failed jobs
    Resume {
        #[arg(required = true, value_name = "JOB")]
        jobs: Vec<u64>,
    },
    /// End jobs; transferred blobs are kept for a day
    Cancel {
        #[arg(required = true, value_name = "JOB")]
        jobs: Vec<u64>,
    },
    /// Limit the bandwidth of all transfers, or of one job
    Limit(jobs::LimitArguments),
    /// Log in to a registry
    Login(login::LoginArguments),
    /// Delete the login for a registry
    Logout { host: String },
    /// List models
    #[command(alias = "ls")]
    List {
        /// List only names with this prefix
        prefix: Option<String>,
        /// List untagged manifests in place of models: pushed by clients, or pulled through from
        /// other registries
        #[arg(long)]
        linked: bool,
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show information about a model
    Show(show::ShowArguments),
    /// Give a model a second name
    Cp {
        #[arg(add = ArgValueCompleter::new(completion::models))]
        source: String,
        destination: String,
    },
    /// Remove models
    Rm {
        #[arg(required = true, add = ArgValueCompleter::new(completion::models))]
        models: Vec<String>,
    },
    /// List loaded models
    Ps {
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Unload a model
    Stop {
        #[arg(add = ArgValueCompleter::new(completion::models))]
        model: String,
    },
    /// List the versions of a model
    History {
        #[arg(add = ArgValueCompleter::new(completion::models))]
        model: String,
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Go back to an earlier version of a model
    Rollback {
        #[arg(add = ArgValueCompleter::new(completion::models))]
        model: String,
        /// Digest of the version or a prefix of it; without it the version before the current one
        #[arg(long)]
        to: Option<String>,
    },
    /// Protect a model from `rm` and `prune`
    Pin {
        #[arg(add = ArgValueCompleter::new(completion::models))]
        model: String,
    },
    /// Remove the protection of a model
    Unpin {
        #[arg(add = ArgValueCompleter::new(completion::models))]
        model: String,
    },
    /// Show the disk usage of models, and the part that they share
    Du {
        /// Show only these models
        #[arg(add = ArgValueCompleter::new(completion::models))]
        models: Vec<String>,
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show the differences of two models
    Diff(diff::DiffArguments),
    /// Estimate the memory of a model, also before it is pulled
    Plan(plan::PlanArguments),
    /// Measure the perplexity of a text under a model
    Perplexity(perplexity::PerplexityArguments),
    /// Check names, manifests and blobs for damage
    Fsck(fsck::FsckArguments),
    /// Move models to another store, such as one on a slower disk
    Move(relocate::MoveArguments),
    /// Copy an adopted model, or one of `LODE_ROOTS`, into the store
    Own {
        #[arg(add = ArgValueCompleter::new(completion::models))]
        model: String,
    },
    /// Fetch damaged and missing blobs again
    Repair {
        /// The model; without it all models
        #[arg(add = ArgValueCompleter::new(completion::models))]
        model: Option<String>,
    },
    /// Delete blobs that nothing refers to
    Gc {
        /// Only report the blobs that would be deleted
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove earlier versions, abandoned transfers and unused models
    Prune(keep::PruneArguments),
    /// Show what is in the tier, and move models to it or back
    Tier(tier::TierArguments),
    /// Save models as a tar with an OCI image layout
    Save(archive::SaveArguments),
    /// Load models from an OCI image layout: a tar or a folder
    Load(archive::LoadArguments),
    /// Write a model as files, as imported or in another format
    Export(export::ExportArguments),
    /// Print a line for the password file of the registry
    Htpasswd(htpasswd::HtpasswdArguments),
    /// Check this installation for problems
    Doctor {
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Open the daemon's web page in a browser, and print its URL
    Ui {
        /// Only print the URL
        #[arg(long)]
        print: bool,
    },
    /// Create an API key, and print its line for the key file
    Key(key::KeyArguments),
    /// Serve a registry from object storage (S3, GCS, Azure)
    Registry(registry::RegistryArguments),
    /// Stop the daemon
    Shutdown,
    /// Print the versions of this program and of the daemon
    Version,
    /// Print the completion script of a shell (bash, zsh or fish)
    Completions {
        #[arg(value_enum)]
        shell: completion::Shell,
    },
    /// Write man pages to a folder
    #[command(hide = true)]
    Man { folder: PathBuf },
}

/// The exit code of a command that an interrupt ended after cleanup: 128 plus the number of
/// `SIGINT`, as shells report it.
const INTERRUPTED: u8 = 130;

/// The error of a command that the user interrupted.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; nothing was written")]
struct Interrupted;

/// The error of an interrupted command whose work goes on in the daemon.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct GoesOn(String);

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    pipe::end_with_the_reader();
    completion::answer(Arguments::command);
    let matches = help::with_groups(Arguments::command()).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = match &arguments.command {
        // `htpasswd` runs without the configuration, because a configuration that requires users
        // cannot be read before the first user exists. The other three need neither daemon nor
        // configuration.
        Command::Htpasswd(user) => htpasswd::run(user),
        Command::Key(arguments) => key::run(arguments),
        Command::Completions { shell } => completion::print(*shell),
        Command::Man { folder } => completion::man(help::with_examples(Arguments::command()), folder),
        _ => Config::read().and_then(|config| dispatch(arguments.command, config)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            text::tell_error(&error);
            if error.is::<Interrupted>() || error.is::<GoesOn>() {
                ExitCode::from(INTERRUPTED)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn dispatch(command: Command, config: Config) -> Result<()> {
    if matches!(command, Command::Serve) {
        let _telemetry = crate::telemetry::start(&config.log, config.log_format, &config.traces);
        return Ok(daemon::run(config.into_settings()?)?);
    }
    if let Command::Registry(arguments) = command {
        return registry::run(config, arguments);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Create(arguments) => create::run(&config, &arguments).await,
            Command::Adopt(arguments) => adopt::run(&config, &arguments).await,
            Command::Run(arguments) => run::run(&config, &arguments).await,
            Command::Launch(arguments) => launch::run(&config, &arguments).await,
            Command::Pull(arguments) => transfer::pull(&config, &arguments).await,
            Command::Prefetch(arguments) => prefetch::run(&config, &arguments).await,
            Command::Search(arguments) => search::run(&config, &arguments).await,
            Command::Push(arguments) => transfer::push(&config, &arguments).await,
            Command::Jobs(arguments) => jobs::list(&config, &arguments).await,
            Command::Pause { jobs } => jobs::change(&config, "pause", &jobs).await,
            Command::Resume { jobs } => jobs::change(&config, "resume", &jobs).await,
            Command::Cancel { jobs } => jobs::change(&config, "cancel", &jobs).await,
            Command::Limit(arguments) => jobs::set_limit(&config, &arguments).await,
            Command::Login(arguments) => login::login(&config, &arguments).await,
            Command::Logout { host } => login::logout(&config, &host).await,
            Command::List { prefix, linked: true, format } => list::linked(&config, prefix.as_deref(), format).await,
            Command::List { prefix, linked: false, format } => list::list(&config, prefix.as_deref(), format).await,
            Command::Show(arguments) => show::run(&config, &arguments).await,
            Command::Cp { source, destination } => manage::copy(&config, &source, &destination).await,
            Command::Rm { models } => manage::remove(&config, &models).await,
            Command::Ps { format } => list::ps(&config, format).await,
            Command::Stop { model } => manage::stop(&config, &model).await,
            Command::Perplexity(arguments) => perplexity::run(&config, &arguments).await,
            other => upkeep(&config, other).await,
        }
    })
}

/// Runs the commands that maintain the store.
async fn upkeep(config: &Config, command: Command) -> Result<()> {
    match command {
        Command::History { model, format } => versions::history(config, &model, format).await,
        Command::Rollback { model, to } => versions::rollback(config, &model, to).await,
        Command::Pin { model } => versions::pin(config, &model).await,
        Command::Unpin { model } => versions::unpin(config, &model).await,
        Command::Du { models, format } => usage::run(config, &models, format).await,
        Command::Diff(arguments) => diff::run(config, &arguments).await,
        Command::Plan(arguments) => plan::run(config, &arguments).await,
        Command::Fsck(arguments) => fsck::run(config, &arguments).await,
        Command::Move(arguments) => relocate::run(config, &arguments).await,
        Command::Own { model } => fsck::own(config, model).await,
        Command::Repair { model } => fsck::repair(config, model).await,
        Command::Gc { dry_run } => keep::gc(config, dry_run).await,
        Command::Prune(arguments) => keep::prune(config, &arguments).await,
        Command::Tier(arguments) => tier::run(config, arguments).await,
        Command::Save(arguments) => archive::save(config, &arguments).await,
        Command::Load(arguments) => archive::load(config, &arguments).await,
        Command::Export(arguments) => export::run(config, &arguments).await,
        other => daemon(config, &other).await,
    }
}

/// Runs the commands about the daemon itself.
async fn daemon(config: &Config, command: &Command) -> Result<()> {
    match command {
        Command::Doctor { format } => doctor::run(config, *format).await,
        Command::Ui { print } => ui::run(config, *print).await,
        Command::Shutdown => serve::shutdown(config).await,
        _ => serve::version(config).await,
    }
}
