//! `lode htpasswd`: a line for the file of the registry's users.

use std::io::{self, BufRead, IsTerminal, Read};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use registry::server::access::htpasswd_line;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

/// The longest password that is read; bcrypt takes less.
const MAX_PASSWORD: u64 = 4096;

/// What `htpasswd` is told.
#[derive(Debug, Args)]
pub(super) struct HtpasswdArguments {
    /// Name of the user
    user: String,
    /// Read the password from standard input and do not ask for it
    #[arg(long)]
    password_stdin: bool,
}

/// Prints the line.
pub(super) fn run(arguments: &HtpasswdArguments) -> Result<()> {
    let password = if arguments.password_stdin { piped()? } else { asked()? };
    println!("{}", htpasswd_line(&arguments.user, &password)?);
    Ok(())
}

fn piped() -> Result<String> {
    let mut text = String::new();
    io::stdin().lock().take(MAX_PASSWORD).read_to_string(&mut text).context("cannot read the password")?;
    Ok(without_line_end(text))
}

fn asked() -> Result<String> {
    ensure!(io::stdin().is_terminal(), "there is no terminal to ask for the password; use `--password-stdin`");
    let _silence = Silence::begin()?;
    let password = prompt("Password: ")?;
    if prompt("Again: ")? != password {
        bail!("the two passwords are not the same");
    }
    Ok(password)
}

fn prompt(text: &str) -> Result<String> {
    eprint!("{text}");
    let mut line = String::new();
    io::stdin().lock().take(MAX_PASSWORD).read_line(&mut line).context("cannot read the password")?;
    eprintln!();
    Ok(without_line_end(line))
}

fn without_line_end(mut text: String) -> String {
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    text
}

/// The terminal does not show what is typed until this is dropped.
struct Silence(rustix::termios::Termios);

impl Silence {
    fn begin() -> Result<Self> {
        let failed = "cannot keep the terminal from showing the password; use `--password-stdin`";
        let before = tcgetattr(io::stdin()).context(failed)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent).context(failed)?;
        Ok(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // The terminal is gone where this fails.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}
