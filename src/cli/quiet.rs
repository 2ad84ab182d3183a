//! Disables the echo of the terminal while an answer is printed, so that typed text does not appear
//! in it.

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// Disables the echo of standard input until it is dropped. The next prompt receives the text typed
/// meanwhile.
pub(super) struct Quiet(Termios);

impl Quiet {
    /// Returns `None` if standard input is not a terminal.
    pub(super) fn begin() -> Option<Self> {
        let before = tcgetattr(std::io::stdin()).ok()?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        // `Flush` would discard the text typed so far.
        tcsetattr(std::io::stdin(), OptionalActions::Now, &quiet).ok()?;
        Some(Self(before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // This fails only if the terminal no longer exists.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}
