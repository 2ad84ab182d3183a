//! Questions to the user.

use std::io::{IsTerminal, Write};

use anyhow::Result;

/// What an empty answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Default {
    Yes,
    No,
}

/// Whether there is a user to be asked.
pub(super) fn is_possible() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks on the terminal; `question` ends in a question mark.
pub(super) fn yes(question: &str, default: Default) -> Result<bool> {
    eprint!("{question} [{}] ", if default == Default::Yes { "Y/n" } else { "y/N" });
    std::io::stderr().flush()?;
    let mut answer = String::new();
    if std::io::stdin().read_line(&mut answer)? == 0 {
        // The end of the input, Ctrl+D, agrees to nothing.
        eprintln!();
        return Ok(false);
    }
    Ok(match answer.trim().to_ascii_lowercase().as_str() {
        "" => default == Default::Yes,
        "y" | "yes" => true,
        _ => false,
    })
}
