//! `lode key`: creates an API key and prints its line for the key file.

use anyhow::Result;
use clap::Args;

use daemon::{Scope, make_key};

/// Arguments of `lode key`.
#[derive(Debug, Args)]
pub(super) struct KeyArguments {
    /// Owner of the key: one word
    name: String,
    /// Permissions, separated by commas: `read` (list models), `run` (use them), `write` (add,
    /// change, remove), `admin`
    #[arg(long, value_delimiter = ',', default_value = "read,run")]
    scopes: Vec<Scope>,
}

/// Prints the line on standard output and the key on standard error. The key itself is stored
/// nowhere.
pub(super) fn run(arguments: &KeyArguments) -> Result<()> {
    let (key, line) = make_key(&arguments.name, &arguments.scopes)?;
    println!("{line}");
    eprintln!("the key of `{}`, which is shown this once: {key}", arguments.name);
    eprintln!("the line above belongs into the file that LODE_API_KEYS names");
    Ok(())
}
