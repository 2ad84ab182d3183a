//! `lode key`: a new API key, and its line in the file of keys.

use anyhow::Result;
use clap::Args;

use daemon::{Scope, make_key};

/// What `key` is told.
#[derive(Debug, Args)]
pub(super) struct KeyArguments {
    /// Whose key it is: one word
    name: String,
    /// What it may do, with commas: `read` (look at models), `run` (use them), `write` (add, change, remove), `admin`
    #[arg(long, value_delimiter = ',', default_value = "read,run")]
    scopes: Vec<Scope>,
}

/// Prints the line on standard output, and the key, which is kept nowhere, beside it.
pub(super) fn run(arguments: &KeyArguments) -> Result<()> {
    let (key, line) = make_key(&arguments.name, &arguments.scopes)?;
    println!("{line}");
    eprintln!("the key of `{}`, which is shown this once: {key}", arguments.name);
    eprintln!("the line above belongs into the file that LODE_API_KEYS names");
    Ok(())
}
