//! Logging to standard error, filtered by `LODE_LOG`, as text or JSON lines.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line, with the span of the request.
    Json,
}

impl LogFormat {
    /// Parses `text` or `json`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// A writer to standard error that never fails. Standard error may be a file on a full disk or a
/// pipe without a reader. Lines that cannot be written are lost, which does not affect the code
/// that logs them.
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

/// Silences html5ever, which logs every text that it sanitizes, such as prompts and answers. A
/// filter that names it enables it again.
const QUIET: &str = "html5ever=warn";

/// A filter for log lines, in the syntax of `tracing`: a level, or levels for parts of the program.
#[derive(Clone, Debug)]
pub(crate) struct LogFilter(String);

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl LogFilter {
    /// Parses a filter such as `info` or `lode_daemon=debug,info`. Returns `None` if the text is
    /// not one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
        // `tracing` reads any other word as a part of the program, and logs the lines of that part
        // only. A misspelt level is therefore refused.
        let names_part = |word: &str| word.contains(['=', '[']) || word.starts_with("lode");
        let fits = text.split(',').map(str::trim).all(|word| is_level(word) || names_part(word));
        (fits && EnvFilter::try_new(text).is_ok()).then(|| Self(text.to_owned()))
    }
}

/// Starts logging.
pub(crate) fn start(LogFilter(filter): &LogFilter, format: LogFormat) {
    let chosen = EnvFilter::try_new(format!("{QUIET},{filter}"));
    let filter = chosen.unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Log);
    // The library's default honors NO_COLOR; files and pipes get no escape sequences.
    let log = if io::stderr().is_terminal() { log } else { log.with_ansi(false) };
    // A second call, as in tests, has no effect.
    let _ = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_of_all_or_of_parts() {
        for good in ["info", "DEBUG", "off", "lode_daemon=debug,info", "lode=trace", "hyper=info, warn", "lode_runner"]
        {
            assert!(LogFilter::parse(good).is_some(), "{good}");
        }
        for bad in ["bogus===", "lode=debgu", "inof", "debug;info", "info,,x"] {
            assert!(LogFilter::parse(bad).is_none(), "{bad}");
        }
    }
}
