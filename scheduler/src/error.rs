//! Errors of starting and using runners.

use std::path::PathBuf;
use std::sync::Arc;

use protocol::FailureKind;

/// Returns advice for a file that cannot be opened.
fn advice(error: &std::io::Error) -> &'static str {
    // EMFILE, ENFILE.
    if matches!(error.raw_os_error(), Some(23 | 24)) {
        "allow the daemon more open files (`ulimit -n`, `LimitNOFILE`)"
    } else {
        "run `lode fsck`, or pull or create the model again"
    }
}

/// Returns advice for a program that does not start.
fn advice_on_start(error: &std::io::Error) -> &'static str {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        "make it executable, or, where its libraries are in an unusual place, set LODE_RUNNER_ISOLATION=0"
    } else {
        "it is installed beside `lode`"
    }
}

/// The reason why a model could not be run. Variants differ by what a caller can do about them. The
/// type is `Clone` because several waiting requests may receive the same failure.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The runner program could not be started.
    #[error("cannot start the runner `{}`: {source}; {}", program.display(), advice_on_start(source))]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// The error of the operating system.
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
        /// The error of the system.
        source: Arc<std::io::Error>,
    },
    /// The runner did not answer in time.
    #[error("the runner did not {what} within {seconds} s")]
    Timeout {
        /// The action that was awaited.
        what: &'static str,
        /// The timeout in seconds.
        seconds: u64,
    },
    /// The runner refused the request; the message is the runner's.
    #[error("{message}")]
    Refused {
        /// The cause as the protocol classifies it.
        kind: FailureKind,
        /// The message for the user.
        message: String,
    },
    /// The runner did not have enough memory for the model, even after all idle models were
    /// unloaded.
    #[error(
        "not enough memory to load this model ({0}), with all idle models unloaded; stop other programs, or choose a \
         smaller context (`num_ctx`) or model"
    )]
    OutOfMemory(String),
    /// The model needs more memory than all runners together may use.
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
    /// Pinned models leave no room for this one, now or later.
    #[error(
        "{pinned} pinned models leave no room for this one; remove one from LODE_PIN, or raise LODE_MAX_LOADED_MODELS or LODE_MEMORY_LIMIT"
    )]
    Pinned {
        /// Number of pinned models that are loaded.
        pinned: usize,
    },
    /// Loading failed repeatedly, the last time moments ago.
    #[error("{reason}; it failed {failures} times, the next attempt is possible in {seconds} s")]
    BackOff {
        /// The reason of the last failure.
        reason: String,
        /// Number of failures in a row.
        failures: u32,
        /// Whole seconds until the next attempt, at least one.
        seconds: u64,
    },
    /// The runner sent a message that violates the protocol.
    #[error("unexpected response of the runner: {0}; install `lode` and `lode-runner` from the same build")]
    Protocol(String),
    /// The queue of waiting requests is full. The text equals Ollama's because clients match on it.
    #[error("server busy, please try again.  maximum pending requests exceeded")]
    Busy,
    /// The model was unloaded, or the daemon was shutting down, while the request waited.
    #[error("the model was unloaded while this request waited for it")]
    Stopped,
}
