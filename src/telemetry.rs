//! Logs: to standard error, filtered by `LODE_LOG`, for people or as lines of JSON.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object a line, with the request's span.
    Json,
}

impl LogFormat {
    /// Reads `text` or `json`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Standard error, which may be a file on a full disk or a pipe that nobody reads: what cannot be written is lost, and harms
/// nobody who wanted to say it.
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs every text that it cleans, which are what people and models say; who wants that names it.
const QUIET: &str = "html5ever=warn";

/// Starts logging. `filter` is in the syntax of `tracing`, e.g. `info` or `lode=debug`.
pub(crate) fn start(filter: &str, format: LogFormat) {
    let chosen = EnvFilter::try_new(format!("{QUIET},{filter}"));
    let filter = chosen.unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Log);
    // A second start, as in tests, changes nothing.
    let _ = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}
