//! Timeouts and numbers of attempts.

use std::time::Duration;

/// The limits of a [`Host`](super::Host). They are not settings; tests use shorter ones.
#[derive(Clone, Debug)]
pub(super) struct HostLimits {
    /// For establishing a connection, including TLS.
    pub(super) connect: Duration,
    /// From the end of a request to the head of its response.
    pub(super) head: Duration,
    /// `head` for a `PUT`. Registries check every layer of a manifest, and move whole blobs, before
    /// they respond.
    pub(super) put_head: Duration,
    /// Between two pieces of a body, in either direction.
    pub(super) stall: Duration,
    /// Maximum number of attempts of a request.
    pub(super) attempts: u32,
    /// Upper bound of the wait before the second attempt. It triples for each further attempt.
    pub(super) first_wait: Duration,
    /// Upper bound of the wait before any attempt.
    pub(super) longest_wait: Duration,
    /// No attempt begins after this time. Waits that the registry requested do not count.
    pub(super) patience: Duration,
    /// The longest wait that a registry may request.
    pub(super) longest_asked: Duration,
}

impl HostLimits {
    /// For a peer: another source has the same bytes, so waiting is not worthwhile.
    pub(super) fn of_peer() -> Self {
        Self {
            connect: Duration::from_secs(1),
            head: Duration::from_secs(5),
            stall: Duration::from_secs(5),
            attempts: 1,
            ..Self::default()
        }
    }
}

impl Default for HostLimits {
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
