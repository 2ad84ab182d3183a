//! How far a transfer is, for whoever watches.

use std::sync::atomic::{AtomicU64, Ordering};

use registry::client::Counter;
use tokio::sync::mpsc::UnboundedSender;

/// Counts bytes and passes statuses on.
#[derive(Debug)]
pub(crate) struct Meter {
    completed: AtomicU64,
    total: AtomicU64,
    statuses: UnboundedSender<String>,
}

impl Meter {
    /// Statuses go to `statuses`; nobody need listen.
    pub(crate) fn new(statuses: UnboundedSender<String>) -> Self {
        Self { completed: AtomicU64::new(0), total: AtomicU64::new(0), statuses }
    }

    /// A step begins.
    pub(crate) fn status(&self, status: impl Into<String>) {
        // An error says that nobody listens.
        let _ = self.statuses.send(status.into());
    }

    /// So many bytes are to be transferred in all.
    pub(crate) fn expect(&self, total: u64) {
        self.completed.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// How many bytes of how many are done.
    pub(crate) fn reading(&self) -> (u64, u64) {
        let total = self.total.load(Ordering::Relaxed);
        (self.completed.load(Ordering::Relaxed).min(total), total)
    }
}

impl Counter for Meter {
    fn add(&self, bytes: u64) {
        self.completed.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, bytes: u64) {
        self.completed.fetch_sub(bytes, Ordering::Relaxed);
    }
}
