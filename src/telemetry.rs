//! Logs: to standard error, filtered by `LODE_LOG`, for people or as lines of JSON.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

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

/// Which lines are logged, in the syntax of `tracing`: a level, or levels of parts of the program.
#[derive(Clone, Debug)]
pub(crate) struct LogFilter(String);

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl LogFilter {
    /// Reads e.g. `info` or `lode_daemon=debug,info`; none for a text that means nothing.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
        // A word that is no level names a part of the program: all of it is logged, and nothing of the others.
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
    // The library's default heeds NO_COLOR; a file or a pipe gets no escape sequences.
    let log = if io::stderr().is_terminal() { log } else { log.with_ansi(false) };
    // A second start, as in tests, changes nothing.
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
