//! How long things may take, and how often they are tried.

use std::time::Duration;

/// The patience of a [`Host`](super::Host). Not a setting: tests have shorter ones.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// For a connection, TLS included.
    pub(super) connect: Duration,
    /// From the end of a request to the head of its answer.
    pub(super) head: Duration,
    /// The same after a PUT: registries look at every layer of a manifest and move whole blobs before they answer.
    pub(super) put_head: Duration,
    /// Between two pieces of a body, either way.
    pub(super) stall: Duration,
    /// How often a request is sent, at most.
    pub(super) attempts: u32,
    /// The longest wait before the second attempt; three times that before the third, and so on.
    pub(super) first_wait: Duration,
    /// The longest wait before any attempt.
    pub(super) longest_wait: Duration,
    /// No further attempt begins when this time has passed, but for the time the registry asked us to wait.
    pub(super) patience: Duration,
    /// The longest wait that a registry may ask for.
    pub(super) longest_asked: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            head: Duration::from_mins(1),
            put_head: Duration::from_mins(5),
            stall: Duration::from_secs(30),
            attempts: 5,
            first_wait: Duration::from_millis(200),
            longest_wait: Duration::from_secs(5),
            patience: Duration::from_secs(30),
            longest_asked: Duration::from_mins(1),
        }
    }
}
