//! Shell completions and man pages, both generated from the definition of the command line.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use api::ollama::TagsResponse;
use clap::ValueEnum;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};

use super::client::Client;
use crate::config::Config;

/// The environment variable by which a shell requests completions.
const VARIABLE: &str = "COMPLETE";
/// Timeout for the daemon's list of models: the user waits for the completion.
const PATIENCE: Duration = Duration::from_millis(300);

/// A supported shell.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Handles a completion request of a shell and exits; does nothing without one.
pub(super) fn answer(command: fn() -> clap::Command) {
    clap_complete::CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Prints the script that registers completions with a shell.
pub(super) fn print(shell: Shell) -> Result<()> {
    let completer: &dyn EnvCompleter = match shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
    };
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "lode", "lode", "lode", &mut script)?;
    print!("{}", String::from_utf8(script).context("the script is not text")?);
    Ok(())
}

/// Writes a man page for the program and each of its commands.
pub(super) fn man(command: clap::Command, folder: &Path) -> Result<()> {
    let failed = || format!("cannot write man pages to `{}`", folder.display());
    std::fs::create_dir_all(folder).with_context(failed)?;
    clap_mangen::generate_to(command, folder).with_context(failed)
}

/// Returns the model names that begin with the typed text. It starts no daemon.
pub(super) fn models(typed: &OsStr) -> Vec<CompletionCandidate> {
    let names = || -> Result<Vec<String>> {
        let client = Client::new(&Config::read()?)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tags = async { tokio::time::timeout(PATIENCE, client.get::<TagsResponse>("/api/tags")).await };
        let tags = runtime.block_on(tags)??;
        Ok(tags.models.into_iter().map(|model| model.name).collect())
    };
    let typed = typed.to_string_lossy();
    let names = names().unwrap_or_default().into_iter();
    let short = |name: String| name.strip_suffix(":latest").map(str::to_owned).unwrap_or(name);
    names.map(short).filter(|name| name.starts_with(&*typed)).map(CompletionCandidate::new).collect()
}
