//! What can go wrong with runners.

use std::path::PathBuf;

/// Why a model could not be run. Variants by what a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runner's program could not be started.
    #[error("cannot start the runner `{}`: {source}; it is installed beside `lode`", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The runner process ended; the next request starts another.
    #[error("the runner of this model ended unexpectedly ({0}); try again, a new one is started")]
    Died(String),
    /// The runner did not answer in time.
    #[error("the runner did not {what} within {seconds} s")]
    Timeout {
        /// What it was to do.
        what: &'static str,
        /// How long it had.
        seconds: u64,
    },
    /// The runner refused; the text is its own.
    #[error("{message}")]
    Refused {
        /// Whether the request was at fault, not the model or the machine.
        bad_request: bool,
        /// For people.
        message: String,
    },
    /// The runner said something that is not of the protocol.
    #[error("the runner answered something unexpected: {0}; install `lode` and `lode-runner` from one build")]
    Protocol(String),
    /// As many models as allowed are loaded, and all are busy.
    #[error("server busy, please try again. {0} models are loaded and all of them are in use")]
    Busy(usize),
}
