//! The maximal number of connections, derived from the limit of open files.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The largest number of connections, also if the limit of open files is higher.
const MOST: usize = 4096;
/// Files that are not connections: the store's files, logs, libraries, and sockets of runners.
const OTHER_FILES: u64 = 96;

/// Limits of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// Maximal number in total.
    pub(super) most: usize,
    /// Maximal number from one remote address. Loopback is exempt, because a local proxy forwards
    /// the requests of all clients.
    pub(super) of_peer: usize,
    /// How long a connection may be silent.
    pub(super) times: Times,
}

/// How long a connection may be silent in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// Maximal time for the headers of a request.
    pub(super) headers: Duration,
    /// Maximal time without a request.
    pub(super) idle: Duration,
    /// Maximal time without a byte of a request's body, or without the client reading a byte of an
    /// answer.
    pub(super) stall: Duration,
    /// How often a connection is checked.
    pub(super) tick: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            headers: Duration::from_secs(15),
            // Longer than clients keep unused connections: a request that arrives as the connection
            // closes would fail.
            idle: Duration::from_mins(5),
            stall: Duration::from_mins(1),
            tick: Duration::from_secs(5),
        }
    }
}

impl ConnectionLimits {
    /// Raises this process's limit of open files as far as allowed, and derives the limits from it.
    pub(crate) fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, ..limit };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!("the limit of open files stays: {error}");
        }
        Self::for_files(getrlimit(Resource::Nofile).current)
    }

    /// Each connection may need a second file, for a blob that it reads or writes. `None` means no
    /// limit of files.
    fn for_files(files: Option<u64>) -> Self {
        let most = files.map_or(MOST, |files| (files.saturating_sub(OTHER_FILES) / 2).clamp(16, MOST as u64) as usize);
        Self { most, of_peer: most.div_ceil(2), times: Times::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_for_the_store() {
        for (files, expect) in [(Some(0), 16), (Some(256), 80), (Some(1024), 464), (Some(1 << 20), MOST), (None, MOST)]
        {
            assert_eq!(ConnectionLimits::for_files(files).most, expect, "{files:?}");
        }
    }
}
