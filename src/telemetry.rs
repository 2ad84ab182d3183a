//! Logs: to standard error, filtered by `LODE_LOG`.

use tracing_subscriber::EnvFilter;

/// Starts logging. `filter` is in the syntax of `tracing`, e.g. `info` or `lode=debug`.
pub(crate) fn start(filter: &str) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    // A second start, as in tests, changes nothing.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
