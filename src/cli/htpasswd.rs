//! `lode htpasswd`: prints a line for the password file of the registry.

use anyhow::{Result, ensure};
use clap::Args;
use registry::server::access::htpasswd_line;

use super::password;

/// Arguments of `lode htpasswd`.
#[derive(Debug, Args)]
pub(super) struct HtpasswdArguments {
    /// Name of the user
    user: String,
    /// Read the password from standard input
    #[arg(long)]
    password_stdin: bool,
}

/// Prints the line.
pub(super) fn run(arguments: &HtpasswdArguments) -> Result<()> {
    let password = if arguments.password_stdin { password::piped()? } else { asked()? };
    println!("{}", htpasswd_line(&arguments.user, &password)?);
    Ok(())
}

fn asked() -> Result<String> {
    let mut given = password::asked(&["Password: ", "Again: "])?;
    ensure!(given.first() == given.last(), "the two passwords are not the same");
    Ok(given.pop().unwrap_or_default())
}
