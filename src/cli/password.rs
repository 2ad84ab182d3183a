//! Reading passwords: from standard input, or from a terminal that does not show them.

use std::io::{self, BufRead, IsTerminal, Read};

use anyhow::{Context, Result, ensure};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

/// The longest password that is read, in bytes: tokens that stand for one are long.
const MAX_PASSWORD: u64 = 64 << 10;

/// What standard input has.
pub(super) fn piped() -> Result<String> {
    let mut text = String::new();
    io::stdin().lock().take(MAX_PASSWORD).read_to_string(&mut text).context("cannot read the password")?;
    Ok(without_line_end(text))
}

/// Asks on the terminal, once for each prompt.
pub(super) fn asked(prompts: &[&str]) -> Result<Vec<String>> {
    ensure!(io::stdin().is_terminal(), "there is no terminal to ask for the password; use `--password-stdin`");
    let _silence = Silence::begin()?;
    prompts.iter().map(|text| prompt(text)).collect()
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
