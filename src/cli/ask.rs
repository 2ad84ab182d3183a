//! Yes-or-no questions to the user.

use std::io::{IsTerminal, Write};

use anyhow::Result;

/// The meaning of an empty answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Default {
    Yes,
    No,
}

/// Returns true if a user can answer: standard input and standard error are terminals.
pub(super) fn is_possible() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks a question on the terminal; `question` ends with a question mark.
pub(super) fn yes(question: &str, default: Default) -> Result<bool> {
    eprint!("{question} [{}] ", if default == Default::Yes { "Y/n" } else { "y/N" });
    std::io::stderr().flush()?;
    let mut answer = String::new();
    if std::io::stdin().read_line(&mut answer)? == 0 {
        // The end of the input (Ctrl+D) means no.
        eprintln!();
        return Ok(false);
    }
    Ok(match answer.trim().to_ascii_lowercase().as_str() {
        "" => default == Default::Yes,
        "y" | "yes" => true,
        _ => false,
    })
}
