//! Completions for shells, and man pages: both are made of the command line's own description.

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

/// The variable by which a shell asks for completions.
const VARIABLE: &str = "COMPLETE";
/// A daemon that takes longer is not waited for: the user has pressed a key.
const PATIENCE: Duration = Duration::from_millis(300);

/// A shell that can complete.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Answers a shell that asks what may follow; does nothing otherwise.
pub(super) fn answer(command: fn() -> clap::Command) {
    clap_complete::CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Prints what makes a shell ask this program.
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

/// The names of models that begin with what was typed. No daemon is started for them.
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
