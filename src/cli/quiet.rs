//! A terminal that does not show what is typed while an answer is printed: it would stand in the middle of the answer.

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// Until this is dropped, standard input is not echoed. What is typed meanwhile is there for the next prompt.
pub(super) struct Quiet(Termios);

impl Quiet {
    /// None where standard input is no terminal.
    pub(super) fn begin() -> Option<Self> {
        let before = tcgetattr(std::io::stdin()).ok()?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        // Not `Flush`, which drops what was typed.
        tcsetattr(std::io::stdin(), OptionalActions::Now, &quiet).ok()?;
        Some(Self(before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // The terminal is gone where this fails.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}
