//! How many connections there may be: what the system lets this process open decides.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The most connections, however many files may be open.
const MOST: usize = 4096;
/// Files that are not connections: the store's, logs, libraries, sockets of runners.
const OTHER_FILES: u64 = 96;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// In all.
    pub(super) most: usize,
    /// From one address that is not this machine's: a proxy here sends the requests of everybody.
    pub(super) of_peer: usize,
    /// How long they may be silent.
    pub(super) times: Times,
}

/// How long a connection may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// The headers of a request may take so long.
    pub(super) headers: Duration,
    /// So long there may be no request.
    pub(super) idle: Duration,
    /// So long the other side may send nothing of a body, or take nothing of an answer.
    pub(super) stall: Duration,
    /// How often a connection is looked at.
    pub(super) tick: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            headers: Duration::from_secs(15),
            // Longer than clients keep connections that they do not use: one that is closed while a request is on its way fails it.
            idle: Duration::from_mins(5),
            stall: Duration::from_mins(1),
            tick: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// For this process, which may open as many files from now on as it is allowed to.
    pub(crate) fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, ..limit };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!("the limit of open files stays: {error}");
        }
        Self::for_files(getrlimit(Resource::Nofile).current)
    }

    /// Each connection may need a second file: of a blob that it reads or writes. `None` is no limit.
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
            assert_eq!(Limits::for_files(files).most, expect, "{files:?}");
        }
    }
}
