//! What can go wrong with runners.

use std::path::PathBuf;
use std::sync::Arc;

use protocol::FailureKind;

/// What to do about a file that cannot be opened.
fn advice(error: &std::io::Error) -> &'static str {
    // EMFILE, ENFILE.
    if matches!(error.raw_os_error(), Some(23 | 24)) {
        "allow the daemon more open files (`ulimit -n`, `LimitNOFILE`)"
    } else {
        "run `lode fsck`, or pull or create the model again"
    }
}

/// What to do about a program that does not start.
fn advice_on_start(error: &std::io::Error) -> &'static str {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        "make it executable, or, where its libraries are in an unusual place, set LODE_RUNNER_ISOLATION=0"
    } else {
        "it is installed beside `lode`"
    }
}

/// Why a model could not be run. Variants by what a caller can do about it. One failure may be told to many who wait.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The runner's program could not be started.
    #[error("cannot start the runner `{}`: {source}; {}", program.display(), advice_on_start(source))]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// The runner process ended; the next request starts another.
    #[error("the runner of this model ended unexpectedly ({0}); try again, a new one is started")]
    Died(String),
    /// A file of the model could not be opened.
    #[error("cannot open `{file}`: {source}; {}", advice(source))]
    File {
        /// Which.
        file: String,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
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
        /// What is at fault.
        kind: FailureKind,
        /// For people.
        message: String,
    },
    /// The runner had not enough memory for the model, also after all idle models had been unloaded.
    #[error(
        "not enough memory to load this model ({0}), with all idle models unloaded; stop other programs, or choose a \
         smaller context (`num_ctx`) or model"
    )]
    OutOfMemory(String),
    /// The model needs more than all runners together may have.
    #[error(
        "model requires more system memory ({} MiB) than is available ({} MiB); choose a smaller context (`num_ctx`), or \
         raise LODE_MEMORY_LIMIT", need.div_ceil(1 << 20), limit >> 20
    )]
    TooLarge {
        /// Bytes that the model needs.
        need: u64,
        /// Bytes that all models may have together.
        limit: u64,
    },
    /// Pinned models leave no room, now or later.
    #[error(
        "{pinned} pinned models leave no room for this one; unpin one, or raise LODE_MAX_LOADED_MODELS or LODE_MEMORY_LIMIT"
    )]
    Pinned {
        /// How many are loaded.
        pinned: usize,
    },
    /// Loading failed a moment ago, again.
    #[error("{reason}; it failed {failures} times, the next attempt is possible in {seconds} s")]
    BackOff {
        /// Why it failed the last time.
        reason: String,
        /// How many times in a row.
        failures: u32,
        /// Whole seconds until the next attempt, at least one.
        seconds: u64,
    },
    /// The runner said something that is not of the protocol.
    #[error("the runner answered something unexpected: {0}; install `lode` and `lode-runner` from one build")]
    Protocol(String),
    /// As many requests as allowed are waiting. The text is Ollama's, because clients look for it.
    #[error("server busy, please try again.  maximum pending requests exceeded")]
    Busy,
    /// The model was unloaded, or the daemon told to end, while the request waited.
    #[error("the model was unloaded while this request waited for it")]
    Stopped,
}
