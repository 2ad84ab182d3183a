//! Reading passwords from standard input, or from a terminal without echo.

use std::io::{self, BufRead, IsTerminal, Read};

use anyhow::{Context, Result, ensure};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};

use super::Interrupted;

/// Maximum length of a password in bytes; tokens in place of passwords are long.
const MAX_PASSWORD: u64 = 64 << 10;
/// Ctrl-C.
const INTERRUPT: u8 = 3;

/// Reads the password from standard input.
pub(super) fn piped() -> Result<String> {
    let mut text = String::new();
    io::stdin().lock().take(MAX_PASSWORD).read_to_string(&mut text).context("cannot read the password")?;
    Ok(without_line_end(text))
}

/// Prompts on the terminal, once for each text.
pub(super) fn asked(prompts: &[&str]) -> Result<Vec<String>> {
    ensure!(io::stdin().is_terminal(), "there is no terminal to ask for the password; use `--password-stdin`");
    let _silence = Silence::begin()?;
    prompts.iter().map(|text| prompt(text)).collect()
}

fn prompt(text: &str) -> Result<String> {
    eprint!("{text}");
    let line = line(&mut io::stdin().lock());
    eprintln!();
    String::from_utf8(line?).map(without_line_end).context("the password is not UTF-8")
}

/// Reads a line. Fails if the user presses Ctrl-C.
fn line(input: &mut impl BufRead) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        let bytes = input.fill_buf().context("cannot read the password")?;
        if bytes.contains(&INTERRUPT) {
            return Err(Interrupted.into());
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(bytes.len(), |end| end + 1);
        line.extend_from_slice(&bytes[..taken]);
        let over = end.is_some() || taken == 0;
        input.consume(taken);
        ensure!(line.len() as u64 <= MAX_PASSWORD, "the password is longer than {MAX_PASSWORD} bytes");
        if over {
            return Ok(line);
        }
    }
}

fn without_line_end(mut text: String) -> String {
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    text
}

/// Disables the echo of the terminal until it is dropped. Meanwhile, Ctrl-C is a plain byte: as a
/// signal, it would end the program and leave the echo disabled.
struct Silence(rustix::termios::Termios);

impl Silence {
    fn begin() -> Result<Self> {
        let failed = "cannot keep the terminal from showing the password; use `--password-stdin`";
        let before = tcgetattr(io::stdin()).context(failed)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
        // Ends a read as soon as Ctrl-C is typed, without waiting for the end of the line.
        silent.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent).context(failed)?;
        Ok(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // This fails only if the terminal no longer exists.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_or_is_given_up() {
        for (typed, expect) in
            [("secret\nmore", Some("secret\n")), ("secret", Some("secret")), ("", Some("")), ("se\x03", None)]
        {
            // Byte by byte, the slowest input from a terminal.
            let mut input = io::BufReader::with_capacity(1, typed.as_bytes());
            let found = line(&mut input).ok().map(|line| String::from_utf8(line).expect("text"));
            assert_eq!(found.as_deref(), expect, "{typed:?}");
        }
    }
}
