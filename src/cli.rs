//! The command line: each command is a page that calls the daemon.
//!
//! Data goes to standard output, messages to standard error. Exit codes: 0 done, 1 failed, 2 used wrongly, 130
//! interrupted.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is where the program speaks")]

mod chat;
mod client;
mod create;
mod htpasswd;
mod interactive;
mod list;
mod manage;
mod run;
mod serve;
mod show;
mod text;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};

use crate::config::Config;

/// A model registry and content-addressed tensor store.
#[derive(Debug, Parser)]
#[command(version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// How data is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Table,
    /// A JSON document, as the API gives it.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon in the foreground
    #[command(alias = "start")]
    Serve,
    /// Create a model from a Modelfile, a GGUF file or a model folder
    Create(create::CreateArguments),
    /// Run a model: one answer to PROMPT, or an interactive session
    Run(run::RunArguments),
    /// List models
    #[command(alias = "ls")]
    List {
        /// Only names that begin with this
        prefix: Option<String>,
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show what is known of a model
    Show(show::ShowArguments),
    /// Give a model a second name
    Cp { source: String, destination: String },
    /// Remove models
    Rm {
        #[arg(required = true)]
        models: Vec<String>,
    },
    /// List loaded models
    Ps {
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Unload a model
    Stop { model: String },
    /// Print a line for the file of the registry's users
    Htpasswd(htpasswd::HtpasswdArguments),
    /// Stop the daemon
    Shutdown,
    /// Print the versions of this program and of the daemon
    Version,
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        // Needs no daemon and no configuration: one that asks for users is not readable before there are some.
        Command::Htpasswd(user) => htpasswd::run(user),
        _ => Config::read().and_then(|config| dispatch(arguments.command, config)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command, config: Config) -> Result<()> {
    if matches!(command, Command::Serve) {
        crate::telemetry::start(&config.log);
        return crate::daemon::run(config);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Serve | Command::Htpasswd(_) => Ok(()),
            Command::Create(arguments) => create::run(&config, &arguments).await,
            Command::Run(arguments) => run::run(&config, &arguments).await,
            Command::List { prefix, format } => list::list(&config, prefix.as_deref(), format).await,
            Command::Show(arguments) => show::run(&config, &arguments).await,
            Command::Cp { source, destination } => manage::copy(&config, &source, &destination).await,
            Command::Rm { models } => manage::remove(&config, &models).await,
            Command::Ps { format } => list::ps(&config, format).await,
            Command::Stop { model } => manage::stop(&config, &model).await,
            Command::Shutdown => serve::shutdown(&config).await,
            Command::Version => serve::version(&config).await,
        }
    })
}
